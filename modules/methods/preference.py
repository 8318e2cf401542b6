"""Preference training: a LoRA that makes the chosen images of pairs likelier than the rejected ones.

Source: Wallace et al. 2023, arXiv 2311.12908, "Diffusion Model Alignment Using Direct Preference Optimization", with
the constants of diffusers' `train_diffusion_dpo.py`; of flow models, the velocity takes the place of the noise, with a
constant beta (Flow-DPO of Liu et al. 2025, arXiv 2501.13918). The reference model is the base without its adapters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from modules.data.Batch import Batch, split_pair
from modules.layers.training_passes import compared_prediction
from modules.methods.DenoisingLoss import DenoisingLoss
from modules.methods.frozen import without_adapters
from modules.methods.lora import Lora
from modules.methods.parts import trained_in

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.weights.BaseModel import BaseModel


class Preference(Lora):
    name = "preference"

    def loss(self, base: BaseModel, config: TrainConfig) -> DenoisingLoss:
        return PreferenceLoss(base, list(trained_in(self, base, config)), config)


METHOD = Preference()


class PreferenceLoss(DenoisingLoss):
    """-log sigmoid(-beta / 2 (e(chosen) - e_base(chosen) - e(rejected) + e_base(rejected))).

    e: the mean squared error of the prediction, e_base: that of the base model; both images have the same noise and
    timestep.
    """

    def __init__(self, base: BaseModel, trained: list[str], config: TrainConfig):
        super().__init__(base, trained, config)
        self._beta = config.preference.beta

    def forward(self, batch: Batch) -> tuple[Tensor, int, dict[str, Tensor]]:
        chosen, rejected = split_pair(self._with_offset(batch))
        margin = -self._beta / 2 * (self._change(chosen) - self._change(rejected))
        losses = -functional.logsigmoid(margin)
        noised, timestep, _ = self._noised(chosen)
        if (preservation := self._preservation(chosen, noised, timestep)) is not None:
            losses = losses + preservation
        losses = losses * batch.weight
        return losses.sum(), batch.count, self._agreement(margin, batch)

    def _change(self, batch: Batch) -> Tensor:
        """[B], by how much the mean squared error is above that of the base model."""
        noised, timestep, target = self._noised(batch)
        with compared_prediction(), without_adapters(self._adapted_layers):
            before = _error(self._predict(batch, noised, timestep), target)
        return _error(self._predict(batch, noised, timestep), target) - before

    @torch.no_grad()
    def _agreement(self, margin: Tensor, batch: Batch) -> dict[str, Tensor]:
        """How many chosen images have become likelier than the rejected ones, relative to the base model."""
        is_real = 1.0 if batch.count else 0.0  # placeholder batches have no metrics
        return {"chosen_likelier": (margin > 0).to(margin.dtype).sum() * is_real} if self._shows_metrics else {}


def _error(prediction: Tensor, target: Tensor) -> Tensor:
    # differences of errors are small: in half precision, nothing of them would be left
    exact = torch.promote_types(prediction.dtype, torch.float32)
    return (prediction.to(exact) - target.to(exact)).square().flatten(1).mean(1)
