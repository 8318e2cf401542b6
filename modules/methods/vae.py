"""VAE training (Kingma & Welling 2014, arXiv 1312.6114): reconstruction error plus a small KL term."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from modules.config.errors import ConfigError
from modules.config.PartConfig import PartConfig
from modules.layers.block_casts import cast_by_block
from modules.methods.Method import Loss
from modules.methods.parts import prepare_for_training
from modules.methods.WholeModelMethod import WholeModelMethod

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.config.VaeConfig import VaeConfig
    from modules.data.Batch import Batch
    from modules.families.Family import Family
    from modules.weights.BaseModel import BaseModel


class Vae(WholeModelMethod):
    name = "vae"

    def components(self, family: Family, config: TrainConfig) -> dict[str, PartConfig]:
        return {name: PartConfig(train=True) for name in self.trainable(family)}

    def attach(self, base: BaseModel, config: TrainConfig) -> None:
        vae = base.vae
        if config.model.mixed_precision == "fp16" and vae.config.get("force_upcast"):
            raise ConfigError.at(
                "model.mixed_precision",
                f"'fp16': the VAE of {config.model.base!r} overflows in float16 (its config has "
                "force_upcast); use bf16 or no.",
            )
        vae.requires_grad_(True)
        if not config.optimizer.fused_backward:  # it frees each gradient before the next one is made
            cast_by_block(vae)
        prepare_for_training(vae, config.model.gradient_checkpointing)

    def loss(self, base: BaseModel, config: TrainConfig) -> VaeLoss:
        return VaeLoss(base, config.vae)


METHOD = Vae()


class VaeLoss(Loss):
    """For each image, the mean error of its pixels plus `kl_weight` times the KL divergence per latent element."""

    def __init__(self, base: BaseModel, config: VaeConfig):
        super().__init__(base, [base.family.vae])
        self._config = config

    def forward(self, batch: Batch) -> tuple[Tensor, int, dict[str, Tensor]]:
        codec, vae = self.base.family.codec, self.base.vae
        assert batch.pixels is not None  # this method trains on pixels
        pixels = batch.pixels.to(vae.dtype)
        posterior = codec.encode(vae, pixels)
        latents = posterior.mean + posterior.std * batch.noise.to(posterior.mean.dtype)
        decoded = codec.decode(vae, latents)
        difference = _exact(decoded) - _exact(pixels)
        error = difference.abs() if self._config.reconstruction == "l1" else difference.square()
        reconstruction = error.flatten(1).mean(1)
        divergence = _exact(posterior.kl()).reshape(len(pixels), -1).sum(1) / posterior.mean[0].numel()
        losses = reconstruction + self._config.kl_weight * divergence
        shown = {"reconstruction": (reconstruction * batch.weight).sum(), "kl": (divergence * batch.weight).sum()}
        return (losses * batch.weight).sum(), batch.count, shown


def _exact(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))
