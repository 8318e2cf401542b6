"""Builds micro-batches from the samples of the plan: cached tensors, with noise and timesteps drawn by hash."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from modules.config.DiffusionConfig import DiffusionConfig
from modules.config.LossConfig import LossConfig
from modules.data.Batch import Batch
from modules.data.clips import BOTH_ENDS
from modules.data.draws import torch_seed, uniform
from modules.data.image_views import crop_of
from modules.data.inpainting import MASKS, chosen_inpainting
from modules.data.references import references_in
from modules.diffusion.timesteps import TimestepDistribution

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from modules.data.buckets import Buckets
    from modules.data.CaptionSource import CaptionSource
    from modules.data.Dataset import Dataset
    from modules.data.epoch_plan import MicroBatch
    from modules.data.records import CachedRecords, PixelRecords
    from modules.families.TextEncoding import Conditioning

Draw = tuple[int, int, int, int]  # (seed, epoch, sample, repeat)


def _stacked(records: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    import torch

    return {name: torch.stack([record[name] for record in records]) for name in records[0]}


@dataclass(frozen=True, eq=False)
class SampleSource:
    """Builds batches; every random number in them is a hash of its purpose (see draws.py).

    pictures: returns the "latents" or "pixels" of a sample.
    captions: draws the caption of a sample; caption dropout replaces it by "", which `text` must hold, too.
    text: returns the conditioning of a caption, or of (caption, sample id) if the text encoders see references; None if
        a text encoder trains and encodes in each step.
    collate: combines the conditioning of several captions into a batch.
    dtype: of the tensors in a batch.
    image_to_video, last_frame: the shares of clips whose first and whose last frame is given.
    whole_mask: the share of drawn masks for inpainting that are the whole image.
    sizes: whether batches include the `sizes` in `Batch.given`.
    sees_references: whether text encoders see the references of a sample.
    diffusion, loss: settings of the noise, of masks and of prior preservation.
    timesteps: the distribution of timesteps.
    zero_unconditional: whether a dropped caption is replaced by zeros instead of the conditioning of "".
    """

    dataset: Dataset
    buckets: Buckets
    pictures: CachedRecords[int] | PixelRecords
    captions: CaptionSource
    text: CachedRecords[Any] | None
    caption_dropout: float
    seed: int
    dtype: torch.dtype
    image_to_video: float = 0.0
    last_frame: float = 0.0
    whole_mask: float = 0.0
    sizes: bool = False
    sees_references: bool = False
    diffusion: DiffusionConfig = field(default_factory=DiffusionConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    timesteps: TimestepDistribution = field(default_factory=TimestepDistribution)
    zero_unconditional: bool = False
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
        last_given = [self._gives_last(draw) for draw in draws]
        records = [
            _with_last_frame(self.pictures.record(sample)) if last else self.pictures.record(sample)
            for sample, last in zip(samples, last_given, strict=True)
        ]
        pictures = _shared(records, "latents", "pixels")
        shape = self.pictures.noise_shape(pictures)
        u = [self.timesteps.at(uniform(*draw, "timestep"), shape) for draw in draws]
        noise = torch.stack([self._noise(draw, shape) for draw in draws]).to(self.dtype)
        if not self.diffusion.offset_noise_by_timestep and (offset := self._offset(draws, shape, pictures)) is not None:
            noise = noise + offset
        return Batch(
            weight=torch.tensor(weights, dtype=torch.float64).to(exact),
            count=len(samples) if micro_batch.real else 0,
            noise=noise,
            u=torch.tensor(u, dtype=torch.float64).to(exact),
            prompts=prompts,
            given=self._given(records, draws, last_given, shape),
            text=self._text(prompts, samples),
            input_noise=self._input_noise(noise, draws, shape),
            offset=self._offset(draws, shape, pictures) if self.diffusion.offset_noise_by_timestep else None,
            mask=self._masks(records, draws, shape),
            prior=_marked([self._is_prior(sample) for sample in samples]),
            unconditional=_marked(dropped) if self.zero_unconditional else None,
            preserved=_marked(has_class),
            class_prompts=of_class if any(has_class) else None,
            class_text=self._text(of_class, samples) if any(has_class) else None,
            **{name: value.to(self.dtype) for name, value in pictures.items()},
        )

    def _given(
        self, records: list[dict[str, Tensor]], draws: list[Draw], last_given: list[bool], shape: tuple[int, ...]
    ) -> dict[str, Tensor | list[list[Tensor]]]:
        """`Batch.given`. records, draws, last_given: of each sample. shape: of the latents of one."""
        import torch

        in_records = _shared(records, "first_frame", "image_features")
        found: dict[str, Tensor | list[list[Tensor]] | None] = {
            **{name: value.to(self.dtype) for name, value in in_records.items()},
            "sizes": torch.tensor([self._sizes(draw[2]) for draw in draws]).float() if self.sizes else None,
            "references": self._references(records),
            "inpainting": self._inpainting(records, draws),
            "last_given": _marked(last_given),
            "first_given": _marked([self._gives_first(draw, shape) for draw in draws]),
        }
        return {name: value for name, value in found.items() if value is not None}

    def _text(self, prompts: list[str], samples: list[int]) -> Conditioning | None:
        if self.text is None:
            return None
        names = zip(prompts, samples, strict=True) if self.sees_references else prompts
        return self.collate([self.text.record(name) for name in names])

    def _of_class(self, prompts: list[str], samples: list[int]) -> tuple[list[bool], list[str]]:
        """`Batch.preserved` and `Batch.class_prompts`."""
        if not self.loss.output_preservation:
            return [False] * len(prompts), prompts
        found = [self.captions.class_of(prompt, sample) for prompt, sample in zip(prompts, samples, strict=True)]
        texts = [own if caption is None else caption for own, caption in zip(prompts, found, strict=True)]
        return [caption is not None for caption in found], texts

    def _drops_caption(self, draw: Draw) -> bool:
        return bool(self.caption_dropout) and uniform(*draw, "caption dropout") < self.caption_dropout

    def _gives_first(self, draw: Draw, shape: tuple[int, ...]) -> bool:
        is_clip = len(shape) == 4 and shape[1] > 1
        return is_clip and bool(self.image_to_video) and uniform(*draw, "image to video") < self.image_to_video

    def _gives_last(self, draw: Draw) -> bool:
        return bool(self.last_frame) and uniform(*draw, "last frame") < self.last_frame

    def _caption(self, draw: Draw) -> str:
        _, epoch, sample, repeat = draw
        return self.captions.draw(sample, epoch, repeat)

    def _sizes(self, sample: int) -> tuple[int, ...]:
        """A row of the `sizes` in `Batch.given`."""
        left, top, right, bottom = crop_of(self.dataset, self.buckets, sample).box
        height, width = int(self.dataset.heights[sample]), int(self.dataset.widths[sample])
        return height, width, top, left, bottom - top, right - left

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

    def _references(self, records: list[dict[str, Tensor]]) -> list[list[Tensor]] | None:
        """The `references` in `Batch.given`; None if no sample has any."""
        found = [[value.to(self.dtype) for value in references_in(record)] for record in records]
        return found if any(found) else None

    def _inpainting(self, records: list[dict[str, Tensor]], draws: list[Draw]) -> Tensor | None:
        """The `inpainting` in `Batch.given`."""
        import torch

        if MASKS not in records[0]:
            return None
        pairs = zip(records, draws, strict=True)
        return torch.stack([chosen_inpainting(record, draw, self.whole_mask) for record, draw in pairs]).to(self.dtype)


def _shared(records: list[dict[str, Tensor]], *names: str) -> dict[str, Tensor]:
    """Those of `names` that the records have, stacked."""
    return _stacked([{name: record[name] for name in names if name in record} for record in records])


def _with_last_frame(record: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**record, "first_frame": record[BOTH_ENDS]}


def _marked(rows: list[bool]) -> Tensor | None:
    import torch

    return torch.tensor(rows) if any(rows) else None


def _normal(draw: Draw, purpose: str, shape: tuple[int, ...]) -> Tensor:
    """Gaussian noise of a sample, in float32 for any training dtype, so that a seed always gives the same noise."""
    import torch

    generator = torch.Generator().manual_seed(torch_seed(*draw, purpose))
    return torch.randn(shape, generator=generator)
