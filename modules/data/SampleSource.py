"""Builds micro-batches from the samples of the plan: cached tensors, with noise and timesteps drawn by hash."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from modules.config.DataConfig import DataConfig
from modules.config.DiffusionConfig import DiffusionConfig
from modules.config.LossConfig import LossConfig
from modules.data.Batch import Batch
from modules.data.conditions.ConditionData import Rows, marked
from modules.data.draws import torch_seed, uniform
from modules.diffusion.timesteps import TimestepDistribution

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from modules.data.buckets import Buckets
    from modules.data.CaptionSource import CaptionSource
    from modules.data.conditions.ConditionData import ConditionData, Draw
    from modules.data.Dataset import Dataset
    from modules.data.drawn_images import DrawnRecords
    from modules.data.epoch_plan import MicroBatch
    from modules.data.records import CachedRecords, PixelRecords
    from modules.families.TextEncoding import Conditioning


def _stacked(records: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    import torch

    return {name: torch.stack([record[name] for record in records]) for name in records[0]}


@dataclass(frozen=True, eq=False)
class SampleSource:
    """Builds batches; every random number in them is a hash of its purpose (see draws.py).

    pictures: returns the "latents" or "pixels" of a sample.
    captions: draws the caption of a sample; caption dropout replaces it by "", which `text` must hold, too.
    text: returns the conditioning of a caption, or of (caption, sample id) if the text encoders see images; None if
        a text encoder trains and encodes in each step.
    collate: combines the conditioning of several captions into a batch.
    dtype: of the tensors in a batch.
    conditions: what the denoiser sees beside text and latents. data: settings by which it is drawn.
    sees_images: whether text encoders see images of a sample.
    diffusion, loss: settings of the noise, of masks and of prior preservation.
    timesteps: the distribution of timesteps.
    zero_unconditional: whether a dropped caption is replaced by zeros instead of the conditioning of "".
    fixed_prompts: role -> prompt of `Batch.fixed_text`, which `text` must hold, too.
    """

    dataset: Dataset
    buckets: Buckets
    pictures: CachedRecords[int] | PixelRecords | DrawnRecords
    captions: CaptionSource
    text: CachedRecords[Any] | None
    caption_dropout: float
    seed: int
    dtype: torch.dtype
    conditions: Sequence[ConditionData] = ()
    data: DataConfig = field(default_factory=DataConfig)
    sees_images: bool = False
    diffusion: DiffusionConfig = field(default_factory=DiffusionConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    timesteps: TimestepDistribution = field(default_factory=TimestepDistribution)
    zero_unconditional: bool = False
    fixed_prompts: Mapping[str, str] = field(default_factory=dict)
    collate: Callable[[list[dict[str, Tensor]]], Conditioning] = _stacked

    def batch(self, micro_batch: MicroBatch, epoch: int) -> Batch:
        """The tensors of one micro-batch, on the CPU."""
        import torch

        draws = [(self.seed, epoch, int(sample), int(repeat)) for sample, repeat in micro_batch.samples]
        samples = [draw[2] for draw in draws]
        dropped = [self._drops_caption(draw) for draw in draws]
        prompts = ["" if drop else self._caption(draw) for draw, drop in zip(draws, dropped, strict=True)]
        has_class, of_class = self._of_class(prompts, samples)
        # weights and timesteps are at least float32: in bf16, neighboring timesteps collapse
        exact = torch.promote_types(self.dtype, torch.float32)
        weights = [self._loss_weight(sample) if micro_batch.real else 0.0 for sample in samples]
        records = [self._record(draw) for draw in draws]
        pictures = _shared(records, "latents", "pixels")
        shape = self.pictures.noise_shape(pictures)
        u = [self.timesteps.at(uniform(*draw, "timestep"), shape) for draw in draws]
        noise = torch.stack([self._noise(draw, shape) for draw in draws]).to(self.dtype)
        if not self.diffusion.offset_noise_by_timestep and (offset := self._offset(draws, shape, pictures)) is not None:
            noise = noise + offset
        given, clean = self._given(Rows(records, draws, shape, self.dataset, self.buckets, self.data))
        return Batch(
            weight=torch.tensor(weights, dtype=torch.float64).to(exact),
            count=len(samples) if micro_batch.real else 0,
            noise=noise,
            u=torch.tensor(u, dtype=torch.float64).to(exact),
            prompts=prompts,
            given=given,
            clean=clean,
            text=self._text(prompts, samples),
            input_noise=self._input_noise(noise, draws, shape),
            offset=self._offset(draws, shape, pictures) if self.diffusion.offset_noise_by_timestep else None,
            mask=self._masks(records, draws, shape),
            prior=marked([self._is_prior(sample) for sample in samples]),
            unconditional=marked(dropped) if self.zero_unconditional else None,
            preserved=marked(has_class),
            class_prompts=of_class if any(has_class) else None,
            class_text=self._text(of_class, samples) if any(has_class) else None,
            fixed_text=self._fixed_text(samples),
            **{name: value.to(self.dtype) for name, value in pictures.items()},
        )

    def _record(self, draw: Draw) -> dict[str, Tensor]:
        record = self.pictures.record(draw[2])
        for condition in self.conditions:
            record = condition.part(record, draw)
        return record

    def _given(self, rows: Rows) -> tuple[dict[str, Any], Tensor | None]:
        """`Batch.given` and `Batch.clean`."""
        given: dict[str, Any] = {}
        clean = None
        for condition in self.conditions:
            found, exact = condition.given(rows), condition.spec.exact
            given |= {name: value if name in exact else self._in_dtype(value) for name, value in found.items()}
            of_condition = condition.clean(found, rows.shape)
            clean = of_condition if of_condition is not None else clean
        return given, clean

    def _in_dtype(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._in_dtype(item) for item in value]
        return value.to(self.dtype) if value.is_floating_point() else value

    def _text(self, prompts: list[str], samples: list[int]) -> Conditioning | None:
        if self.text is None:
            return None
        names = zip(prompts, samples, strict=True) if self.sees_images else prompts
        return self.collate([self.text.record(name) for name in names])

    def _fixed_text(self, samples: list[int]) -> dict[str, Conditioning]:
        texts = {role: self._text([prompt] * len(samples), samples) for role, prompt in self.fixed_prompts.items()}
        return {role: text for role, text in texts.items() if text is not None}

    def _of_class(self, prompts: list[str], samples: list[int]) -> tuple[list[bool], list[str]]:
        """`Batch.preserved` and `Batch.class_prompts`."""
        if not self.loss.output_preservation:
            return [False] * len(prompts), prompts
        found = [self.captions.class_of(prompt, sample) for prompt, sample in zip(prompts, samples, strict=True)]
        texts = [own if caption is None else caption for own, caption in zip(prompts, found, strict=True)]
        return [caption is not None for caption in found], texts

    def _drops_caption(self, draw: Draw) -> bool:
        return bool(self.caption_dropout) and uniform(*draw, "caption dropout") < self.caption_dropout

    def _caption(self, draw: Draw) -> str:
        _, epoch, sample, repeat = draw
        return self.captions.draw(sample, epoch, repeat)

    def _loss_weight(self, sample: int) -> float:
        return self.dataset.concepts[self.dataset.concept_index[sample]].loss_weight

    def _is_prior(self, sample: int) -> bool:
        concept = self.dataset.concepts[self.dataset.concept_index[sample]]
        return self.loss.prior_by_frozen_model and concept.regularisation

    def _noise(self, draw: Draw, shape: tuple[int, ...]) -> Tensor:
        noise = _normal(draw, "noise", shape)
        if self.diffusion.multires_noise_iterations:
            noise = self._multires_noise(noise, draw)
        return noise

    def _offset(self, draws: list[Draw], shape: tuple[int, ...], pictures: Mapping[str, Tensor]) -> Tensor | None:
        """`Batch.offset`. pictures: its latents or pixels."""
        import torch

        strength, is_random = self.diffusion.offset_noise, self.diffusion.offset_noise_random
        if not strength:
            return None
        flat = (shape[0], *[1] * (len(shape) - 1))
        strengths = torch.tensor(
            [strength * uniform(*draw, "offset noise strength") if is_random else strength for draw in draws]
        ).view(-1, *[1] * len(shape))
        if (adaptive := self.diffusion.offset_noise_adaptive) and "latents" in pictures:
            means = pictures["latents"].float().flatten(2).mean(2).abs()
            strengths = (strengths + adaptive * means.view(len(draws), *flat)).clamp(min=0)
        return (torch.stack([_normal(draw, "offset noise", flat) for draw in draws]) * strengths).to(self.dtype)

    def _multires_noise(self, noise: Tensor, draw: Draw) -> Tensor:
        """`noise`, [C, ..., H, W], with noise of coarser and coarser resolutions added, at its own variance.

        Each is 2 to 4 times coarser than the one before, drawn for each sample, down to a single cell.
        Source: Whitaker 2023, "Multi-Resolution Noise for Diffusion Model Training", Weights & Biases.
        """
        import torch

        height, width = noise.shape[-2:]
        total = noise
        for number in range(self.diffusion.multires_noise_iterations):
            factor = (2 + 2 * uniform(*draw, f"multires factor {number}")) ** number
            size = max(1, int(height / factor)), max(1, int(width / factor))
            coarse = _normal(draw, f"multires noise {number}", (*noise.shape[:-2], *size))
            flat = coarse.reshape(1, -1, *size)
            enlarged = torch.nn.functional.interpolate(flat, size=(height, width), mode="bilinear")
            total = total + enlarged.reshape(noise.shape) * self.diffusion.multires_noise_discount**number
            if 1 in size:
                break
        return total / total.std() * noise.std()

    def _input_noise(self, noise: Tensor, draws: list[Draw], shape: tuple[int, ...]) -> Tensor | None:
        """Ning et al. 2023, arXiv 2301.11706, algorithm 1: the input has more noise than the model must predict."""
        import torch

        gamma = self.diffusion.input_perturbation
        if not gamma:
            return None
        return noise + gamma * torch.stack([_normal(draw, "input noise", shape) for draw in draws]).to(self.dtype)

    def _masks(self, records: list[dict[str, Tensor]], draws: list[Draw], shape: tuple[int, ...]) -> Tensor | None:
        """`Batch.mask`: ones for images without a mask or drawn to be trained unmasked; None if all of them are."""
        import torch

        if not self.loss.masked_training:
            return None
        white = torch.ones(1, *shape[1:])
        ignored = [uniform(*draw, "unmasked") < self.loss.unmasked_probability for draw in draws]
        masks = [
            white if skip or "mask" not in r else r["mask"].expand_as(white)  # the same for every frame
            for r, skip in zip(records, ignored, strict=True)
        ]
        if all(mask is white for mask in masks):
            return None
        return torch.stack(masks).to(self.dtype)


def _shared(records: list[dict[str, Tensor]], *names: str) -> dict[str, Tensor]:
    """Those of `names` that the records have, stacked."""
    return _stacked([{name: record[name] for name in names if name in record} for record in records])


def _normal(draw: Draw, purpose: str, shape: tuple[int, ...]) -> Tensor:
    """Gaussian noise of a sample, in float32 for any training dtype, so that a seed always gives the same noise."""
    import torch

    generator = torch.Generator().manual_seed(torch_seed(*draw, purpose))
    return torch.randn(shape, generator=generator)
