"""The loss of every method that trains a denoiser."""

from __future__ import annotations

from torch import Tensor

from modules.data.Batch import Batch
from modules.diffusion.objectives import mse_per_sample
from modules.families.conditioning import encode_text
from modules.families.prediction import objective_of, predict
from modules.methods.Method import Loss
from modules.weights.BaseModel import BaseModel


class DenoisingLoss(Loss):
    """Mean squared error between the denoiser's prediction and the family's target, weighted by sample."""

    def __init__(self, base: BaseModel, trained: list[str]):
        super().__init__(base, trained)
        self._objective = objective_of(base.family, base.pipe.scheduler.config, base.device)
        if base.config.gradient_checkpointing:  # gradients of the text pass through a denoiser that is frozen, too
            base.module(base.family.denoisers[0]).enable_gradient_checkpointing()

    def forward(self, batch: Batch) -> tuple[Tensor, int, dict[str, Tensor]]:
        family = self.base.family
        text = batch.text if batch.text is not None else encode_text(family, self.base.pipe, batch.prompts)
        noised, timestep, target = self._objective.noise(batch.latents, batch.noise, batch.u)
        denoiser = self.base.module(family.denoisers[0])
        prediction = predict(family, denoiser, noised, timestep, text)
        losses = mse_per_sample(prediction, target)
        return (losses * batch.weight).sum(), batch.count, {}
