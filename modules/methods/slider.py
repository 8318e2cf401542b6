"""Concept sliders: a LoRA that gives more of something at positive strengths, and less of it at negative ones.

Source: Gandikota et al. 2023, arXiv 2311.12092, "Concept Sliders: LoRA Adaptors for Precise Control in Diffusion
Models": text sliders by equation 8, image-pair sliders by section 4.2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from modules.config.methods import BLANK, NEGATIVE, POSITIVE, TARGET, has_images
from modules.data.Batch import Batch, split_pair
from modules.layers.checkpoints import checkpoint
from modules.layers.training_passes import compared_prediction
from modules.methods.AdapterStrength import AdapterStrength
from modules.methods.DenoisingLoss import DenoisingLoss
from modules.methods.frozen import without_adapters
from modules.methods.lora import Lora
from modules.methods.parts import trained_in

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.weights.BaseModel import BaseModel


class Slider(Lora):
    name = "slider"

    def loss(self, base: BaseModel, config: TrainConfig) -> DenoisingLoss:
        kind = PairLoss if config.slider.source == "pairs" else PromptLoss
        return kind(base, list(trained_in(self, base, config)), config)


METHOD = Slider()


class Side(NamedTuple):
    """What is trained at one strength. sign: of it. target: of the prediction for `batch` and `noised`."""

    sign: int
    batch: Batch
    noised: Tensor
    timestep: Tensor
    target: Tensor


class SliderLoss(DenoisingLoss):
    """The mean error of two predictions: at the trained strength, and at the same strength below zero."""

    def __init__(self, base: BaseModel, trained: list[str], config: TrainConfig):
        super().__init__(base, trained, config)
        self._slider = config.slider

    def forward(self, batch: Batch) -> tuple[Tensor, int, dict[str, Tensor]]:
        both = self._sides(self._with_offset(batch))
        losses = torch.zeros_like(batch.weight)
        for side in both:
            with self._strength.at(side.sign * self._slider.strength):
                prediction = self._predict(side.batch, side.noised, side.timestep)
                error = self._losses(side.batch, prediction, side.target, None)
                if (preservation := self._preservation(batch, side.noised, side.timestep)) is not None:
                    error = error + preservation
            losses = losses + error / len(both)
        losses = losses * batch.weight
        return losses.sum(), batch.count, self._metrics(batch, losses, prediction, side.target)

    def _sides(self, batch: Batch) -> list[Side]:
        raise NotImplementedError

    @cached_property
    def _strength(self) -> AdapterStrength:
        return AdapterStrength(self.children())

    def _checkpointing(self, own: Callable[..., Any] | None) -> Callable[..., Any]:
        return self._strength.checkpointed(own or checkpoint)


class PairLoss(SliderLoss):
    """Images of a strong effect are trained at the positive strength, and their counterparts at the negative one.

    Both with the same noise and timestep, so that only what differs between the images has a direction.
    """

    def _sides(self, batch: Batch) -> list[Side]:
        strong, weak = split_pair(batch)
        return [Side(sign, own, *self._noised(own)) for sign, own in ((1, strong), (-1, weak))]


class PromptLoss(SliderLoss):
    """The prediction for the target prompt moves by eta times what the base model makes of the prompts' difference.

    At the positive strength towards e(target) + eta (e(positive) - e(negative)), at the negative one away from it, e
    being the base model's prediction for the same noised latents. With attributes to preserve, the difference is the
    mean of those with each of them, where the paper has the sum, so that eta means the same for any number.
    """

    def __init__(self, base: BaseModel, trained: list[str], config: TrainConfig):
        super().__init__(base, trained, config)
        self._draws_latents = not has_images(config)

    def _sides(self, batch: Batch) -> list[Side]:
        own = self._with_prompt(batch, TARGET)
        noised, timestep = self._denoised(batch) if self._draws_latents else self._noised(batch)[:2]
        with compared_prediction(), without_adapters(self._adapted_layers):
            middle = self._predict(own, noised, timestep)
            direction = torch.zeros_like(middle)
            of_each = [role for role in self._prompts if role.startswith(POSITIVE)]
            for role in of_each:
                opposite = NEGATIVE + role.removeprefix(POSITIVE)
                for sign, one in ((1, role), (-1, opposite)):
                    direction += sign * self._predict(self._with_prompt(batch, one), noised, timestep)
            direction *= self._slider.eta / len(of_each)
        return [Side(sign, own, noised, timestep, middle + sign * direction) for sign in (1, -1)]

    def _denoised(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(latents that the base model has denoised for the target prompt down to the batch's timesteps, these)."""
        latents, steps = batch.noise, self._slider.denoising_steps
        levels = [1 + (batch.u - 1) * number / steps for number in range(steps + 1)]
        with compared_prediction(), without_adapters(self._adapted_layers):
            for start, end in pairwise(levels):
                prediction = self._guided(batch, latents, self._objective.timestep(start))
                latents = self._objective.step(latents, prediction, start, end)
        return latents, self._objective.timestep(batch.u)

    def _guided(self, batch: Batch, latents: Tensor, timestep: Tensor) -> Tensor:
        prediction = self._predict(self._with_prompt(batch, TARGET), latents, timestep)
        if BLANK not in self._prompts:
            return prediction
        blank = self._predict(self._with_prompt(batch, BLANK), latents, timestep)
        return blank + self._slider.denoising_guidance * (prediction - blank)
