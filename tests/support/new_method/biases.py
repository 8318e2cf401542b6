"""A method that Chorus does not have: it trains the biases of the denoiser and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import save_file

from modules.config.PartConfig import PartConfig
from modules.methods.DenoisingLoss import DenoisingLoss
from modules.methods.Method import Method
from modules.methods.parts import prepare_for_training, trained_in

if TYPE_CHECKING:
    from torch import Tensor

    from modules.config.TrainConfig import TrainConfig
    from modules.families.Family import Family
    from modules.weights.BaseModel import BaseModel


class Biases(Method):
    name = "biases"

    def components(self, family: Family, config: TrainConfig) -> dict[str, PartConfig]:
        return {name: PartConfig(train=True) for name in self.trainable(family)}

    def attach(self, base: BaseModel, config: TrainConfig) -> None:
        for name in trained_in(self, base, config):
            module = base.module(name)
            for path, parameter in module.named_parameters():
                parameter.requires_grad_(path.endswith(".bias"))
            prepare_for_training(module, config.model.gradient_checkpointing)

    def loss(self, base: BaseModel, config: TrainConfig) -> DenoisingLoss:
        return DenoisingLoss(base, list(trained_in(self, base, config)), config)

    def check_output(self, base: BaseModel, config: TrainConfig) -> None:
        """Its file has a place for every bias."""

    def save(
        self, base: BaseModel, config: TrainConfig, folder: Path, name: str, metadata: dict[str, str]
    ) -> list[Path]:
        path = folder / f"{name}.safetensors"
        save_file(self._biases(base), path, metadata)
        return [path]

    def saved_bytes(self, base: BaseModel, config: TrainConfig) -> int:
        return sum(bias.nbytes for bias in self._biases(base).values())

    def _biases(self, base: BaseModel) -> dict[str, Tensor]:
        (denoiser,) = self.trainable(base.family)
        named = base.module(denoiser).named_parameters()
        return {path: bias.detach().contiguous() for path, bias in named if bias.requires_grad}


METHOD = Biases()
