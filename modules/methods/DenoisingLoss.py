"""The loss of all methods that train with a denoiser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from modules.config.methods import BLANK, fixed_prompts
from modules.data.Batch import Batch
from modules.diffusion.loss_weights import timestep_weight
from modules.diffusion.losses import LossMix, huber_delta, masked_mean, per_sample
from modules.diffusion.metrics import agreement, loss_by_quarter
from modules.diffusion.objectives import Ddpm, Noised
from modules.families.conditioning import encode_text, is_unconditional_zero, zeroed
from modules.families.prediction import objective_of, predict_all
from modules.families.sound import sound_error
from modules.layers.ActivationOffload import ActivationOffload
from modules.layers.checkpoints import checkpoint
from modules.layers.training_passes import compared_prediction
from modules.layers.transfers import transfers_to
from modules.methods.frozen import adapted_layers, without_adapters
from modules.methods.Method import Loss
from modules.weights.BaseModel import BaseModel

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.families.TextEncoding import Conditioning
    from modules.methods.frozen import AdaptedLayer


class DenoisingLoss(Loss):
    """The error between the denoiser's prediction and the target, weighted by sample, timestep and mask.

    With prior preservation, the target is the prediction of the base model before training: for samples of
    regularization concepts (`Batch.prior`), and outside of masks.
    """

    def __init__(self, base: BaseModel, trained: list[str], config: TrainConfig):
        super().__init__(base, trained)
        self._config = config.loss
        self._guidance = config.diffusion.guidance
        self._shows_metrics = config.has_loggers
        self._prompts = fixed_prompts(config)
        loss = config.loss
        self._mix = LossMix(loss.mse, loss.mae, loss.huber, loss.smooth_l1, loss.log_cosh)
        self._objective = objective_of(base.family, base.pipe.scheduler.config, base.device)
        if base.config.gradient_checkpointing:  # even a frozen denoiser passes gradients on to the text
            own = checkpoint if base.config.cuda_graphs == "on" else None
            if base.config.activation_offloading:
                own = ActivationOffload(base.device, transfers_to(base.device)).checkpoint
            for name in filter(base.is_loaded, base.family.denoisers):
                base.denoiser(name).enable_gradient_checkpointing(self._checkpointing(own))

    def forward(self, batch: Batch) -> tuple[Tensor, int, dict[str, Tensor]]:
        batch = self._with_offset(batch)
        noised, timestep, target = self._noised(batch)
        frozen = self._frozen_prediction(batch, noised, timestep)
        if batch.prior is not None:
            assert frozen is not None  # predicted for batches with `prior`
            target = torch.where(per_sample(batch.prior, target), frozen.to(target.dtype), target)
        prediction, *further = self._predict_all(batch, noised, timestep)
        losses = self._losses(batch, prediction, target, frozen)
        for heard in further:  # not of regularization concepts, of whose sound the base model's prediction is unknown
            error = self._config.sound_weight * sound_error(heard, batch.given)
            losses = losses + (error if batch.prior is None else error.masked_fill(batch.prior, 0))
        if (preservation := self._preservation(batch, noised, timestep)) is not None:
            losses = losses + preservation
        losses = losses * batch.weight
        return losses.sum(), batch.count, self._metrics(batch, losses, prediction, target)

    def _checkpointing(self, own: Callable[..., Any] | None) -> Callable[..., Any] | None:
        """What checkpoints the denoiser's blocks. own: what the settings ask for; None for that of diffusers."""
        return own

    def _noised(self, batch: Batch) -> Noised:
        """The noised latents of a batch `_with_offset`."""
        latents = batch.latents
        assert latents is not None  # only the VAE trains on pixels
        noised, timestep, target = self._objective.noise(latents, batch.noise, batch.u)
        if batch.input_noise is not None:
            noised = self._objective.noise(latents, batch.input_noise, batch.u).latents
        if batch.clean is not None:
            noised, target = torch.where(batch.clean, latents, noised), target.masked_fill(batch.clean, 0)
        return Noised(noised, timestep, target)

    def _with_offset(self, batch: Batch) -> Batch:
        """The batch with the share of its `offset` in its noise."""
        if batch.offset is None:
            return batch
        assert isinstance(self._objective, Ddpm)  # the settings refuse it for flow models
        share = self._objective.offset_share(batch.u).to(batch.offset.dtype)
        offset = per_sample(share, batch.offset) * batch.offset
        input_noise = None if batch.input_noise is None else batch.input_noise + offset
        return replace(batch, noise=batch.noise + offset, input_noise=input_noise, offset=None)

    def _predict(self, batch: Batch, noised: Tensor, timestep: Tensor) -> Tensor:
        return self._predict_all(batch, noised, timestep)[0]

    def _predict_all(self, batch: Batch, noised: Tensor, timestep: Tensor) -> list[Tensor]:
        text, family, pipe = self._text(batch), self.base.family, self.base.pipe
        host_timestep = self._objective.timestep(batch.host_u) if family.experts else None
        first, *further = predict_all(family, pipe, noised, timestep, text, batch.given, self._guidance, host_timestep)
        return [first if batch.clean is None else first.masked_fill(batch.clean, 0), *further]

    def _text(self, batch: Batch) -> Conditioning:
        text = batch.text if batch.text is not None else encode_text(self.base.family, self.base.pipe, batch.prompts)
        return text if batch.unconditional is None else zeroed(text, batch.unconditional)

    def _frozen_prediction(self, batch: Batch, noised: Tensor, timestep: Tensor) -> Tensor | None:
        """The prediction of the base model before training; None if it is not needed."""
        config = self._config
        outside_masks = batch.mask is not None and config.masked_prior_preservation_weight
        for_others = self.same_passes and (
            config.prior_by_frozen_model or (config.masked_training and config.masked_prior_preservation_weight)
        )
        if batch.prior is None and not outside_masks and not for_others:
            return None
        with compared_prediction(), without_adapters(self._adapted_layers):
            return self._predict(batch, noised, timestep)

    def _preservation(self, batch: Batch, noised: Tensor, timestep: Tensor) -> Tensor | None:
        """[B], how far the adapters move predictions that are to stay, weighted; None if none is.

        For captions of the class and for the empty prompt. Source: differential output preservation and blank prompt
        preservation of ai-toolkit (Ostris 2025), which compares by squared error.
        """
        terms = []
        preserved = batch.preserved
        if preserved is not None or (self.same_passes and self._config.output_preservation):
            of_class = batch
            if batch.class_prompts is not None:
                of_class = replace(batch, text=batch.class_text, prompts=batch.class_prompts)
            error = self._moved(of_class, noised, timestep)
            weight = self._config.output_preservation_weight
            terms.append(error * (0.0 if preserved is None else weight * preserved.to(error.dtype)))
        if self._config.blank_preservation:
            error = self._moved(self._with_prompt(batch, BLANK), noised, timestep)
            terms.append(self._config.blank_preservation_weight * error)
        return sum(terms[1:], terms[0]) if terms else None

    def _moved(self, batch: Batch, noised: Tensor, timestep: Tensor) -> Tensor:
        """[B], the mean squared difference that the adapters make to the predictions."""
        with compared_prediction(), without_adapters(self._adapted_layers):
            before = self._predict(batch, noised, timestep)
        return (self._predict(batch, noised, timestep) - before).square().flatten(1).mean(1)

    def _with_prompt(self, batch: Batch, role: str) -> Batch:
        """The batch with one of the fixed prompts in place of the captions."""
        prompt, count = self._prompts[role], len(batch.noise)
        is_zero = not prompt and is_unconditional_zero(self.base.family, self.base.pipe)
        zero = torch.ones(count, dtype=torch.bool, device=batch.noise.device) if is_zero else None
        return replace(batch, text=batch.fixed_text.get(role), prompts=[prompt] * count, unconditional=zero)

    @cached_property
    def _adapted_layers(self) -> list[AdaptedLayer]:
        return adapted_layers(self.children())

    def _losses(self, batch: Batch, prediction: Tensor, target: Tensor, frozen: Tensor | None) -> Tensor:
        """[B], the error of each sample, weighted by timestep."""
        config = self._config
        delta = None
        if config.huber or config.smooth_l1:
            delta = huber_delta(config.huber_schedule, config.huber_delta, batch.u, self._objective.snr(batch.u))
        error = self._mix.error(prediction, target, delta)
        if batch.mask is None:
            losses = error.flatten(1).mean(1)
        else:
            losses = masked_mean(error, batch.mask, config.unmasked_weight, config.normalize_masked_area_loss)
            if config.masked_prior_preservation_weight:
                assert frozen is not None  # predicted for batches with a mask
                error = self._mix.error(prediction, frozen, delta)
                outside = masked_mean(error, 1 - batch.mask, 0.0, config.normalize_masked_area_loss)
                losses = losses + config.masked_prior_preservation_weight * outside
        if batch.clean is not None:  # its error is 0, and the mean is over the rest
            is_counted = (~batch.clean).flatten(1)
            losses = losses * (is_counted.shape[1] / is_counted.sum(1)).to(losses.dtype)
        objective = self._objective
        predicted = objective.prediction_type if isinstance(objective, Ddpm) else "epsilon"  # no matter for flow models
        weight = timestep_weight(config, batch.u, objective.snr, predicted)
        return losses if weight is None else losses * weight

    @torch.no_grad()
    def _metrics(self, batch: Batch, losses: Tensor, prediction: Tensor, target: Tensor) -> dict[str, Tensor]:
        if not self._shows_metrics:
            return {}
        real = 1.0 if batch.count else 0.0  # placeholder batches have no metrics
        shown = loss_by_quarter(losses, batch.u, real)
        if self.base.family.objective == "flow":
            shown |= {name: value * real for name, value in agreement(prediction, target).items()}
        return shown
