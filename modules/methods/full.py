"""Full fine-tuning: every weight of the chosen parts trains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from modules.methods.DenoisingLoss import DenoisingLoss
from modules.methods.parts import prepare_for_training, trained_in, trained_parts
from modules.weights.model_files import save_model

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.families.Family import Family
    from modules.weights.BaseModel import BaseModel


class Full:
    inputs = "latents"

    def components(self, family: Family, config: TrainConfig) -> dict[str, float | None]:
        return trained_parts(family, config, {*family.denoisers, *family.text.encoders})

    def attach(self, base: BaseModel, config: TrainConfig) -> None:
        for name in trained_in(self, base, config):
            base.module(name).requires_grad_(True)
            prepare_for_training(base.module(name), config.model.gradient_checkpointing)

    def loss(self, base: BaseModel, config: TrainConfig) -> DenoisingLoss:
        return DenoisingLoss(base, list(trained_in(self, base, config)))

    def save(
        self, base: BaseModel, config: TrainConfig, folder: Path, name: str, metadata: dict[str, str]
    ) -> list[Path]:
        return save_model(base, config.output, folder, name, metadata)
