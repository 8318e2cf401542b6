"""One micro-batch, ready for the loss."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from modules.families.TextEncoding import Conditioning


@dataclass(frozen=True)
class Batch:
    """Samples of one shape. Legend: B samples, C channels, H W latent cells or pixels.

    For video models, latents, noise and mask have a frame axis after C.

    weight: [B], the factor of each sample's loss; 0 in a placeholder batch, which only keeps this rank in step.
    count: number of samples that count in the step's mean; 0 in a placeholder batch.
    noise: [B, C, H, W], in latent space.
    u: [B], uniform draws in [0, 1) for the timesteps.
    latents: [B, C, H, W], clean and normalized; None if the method takes pixels.
    pixels: [B, 3, H, W] in [-1, 1], or None.
    given: what the denoiser sees beside text and latents, by name, each a tensor [B, ...] or a list of tensors for
        each sample. A name is missing where the family does not take it or no sample has it:
        sizes: [B, 6], in pixels: height and width of the original image, top and left of the crop in the resized image,
            height and width of the crop.
        references: of each sample, the normalized latents of its reference images, not batched, whose sizes may differ.
        first_frame: [B, C, F, H, W], normalized latents of the clips with gray in place of all frames but the first
            (and the last, see `last_given`); or what the family's FirstFrame encodes. Lists, of none or one for
            each sample, where it is seen beside the latents, and so are `image_features`.
        last_given: bool[B], clips whose `first_frame` shows the last frame, too.
        first_given: bool[B], clips whose first latent frame is `clean`.
        image_features: [B, tokens, width], what an image encoder makes of the first frames.
        inpainting: [B, M + C, h, w], for families that paint a part of an image: the mask as they see it, 1 where they
            paint, and normalized latents of the image with gray in place of that part.
        source_clip: [B, C, F, H, W], normalized latents of the clips that a model of edits starts from; where these can
            have masks [B, 2 C + M, F, H, W], as SourceClip says.
        sound: [B, R, L, C], normalized latents of the sound of clips; R as in Sound. sound_noise: noise for it, in the
            same shape.
        sound_heard: bool[B], clips that have any; the others' sound is silence, and no part of the loss.
        history: [B, C, 1 + F, h, w], what precedes the sections that are trained, as in SectionHistory.
        paired: see PAIRED.
    clean: bool, in a shape that broadcasts to that of the latents: what of them gets no noise and is no part of the
        loss; None for nothing.
    input_noise: [B, C, H, W], added to the latents instead of `noise`, which stays the target; None to use `noise`.
    offset: [B, C, 1, 1], noise that is the same all over an image, of which both `noise` and `input_noise` get a share
        that depends on the timestep; None if they have it already, or none.
    mask: [B, 1, H, W], 1 where the image is learned and 0 where it is not; None if no sample is masked.
    prior: bool[B], samples whose target is the prediction of the base model before training, or None.
    unconditional: bool[B], samples whose conditioning is all zeros, or None.
    cpu_u: a copy of `u` on the CPU if the batch is on another device; see `host_u`.
    text: conditioning by name; None if the text encoder trains and encodes `prompts` in each step.
    preserved: bool[B], samples whose caption has a class for output preservation, or None.
    class_prompts, class_text: as `prompts` and `text`, with the class in place of the trigger word in the rows that are
        `preserved`; None if `preserved` is.
    fixed_text: as `text`, for each role of `fixed_prompts` (config/methods.py); empty if `text` is None.
    """

    weight: Tensor
    count: int
    noise: Tensor
    u: Tensor
    prompts: list[str]
    latents: Tensor | None = None
    pixels: Tensor | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    clean: Tensor | None = None
    input_noise: Tensor | None = None
    offset: Tensor | None = None
    mask: Tensor | None = None
    prior: Tensor | None = None
    unconditional: Tensor | None = None
    text: Conditioning | None = None
    preserved: Tensor | None = None
    class_prompts: list[str] | None = None
    class_text: Conditioning | None = None
    fixed_text: Mapping[str, Conditioning] = field(default_factory=dict)
    cpu_u: Tensor | None = None

    @property
    def host_u(self) -> Tensor:
        """`u` on the CPU, so that reading it does not synchronize with the device."""
        return self.u if self.cpu_u is None else self.cpu_u

    def to(self, device: torch.device) -> Batch:
        if device.type == "cpu":
            return self
        moved = self.mapped(lambda value: value.to(device, non_blocking=True))
        return replace(moved, cpu_u=self.host_u)

    def pinned(self) -> Batch:
        """The batch in pinned memory, from which copies to a GPU are asynchronous, as far as it can be pinned."""
        from modules.layers.PinnedMemory import PINNED  # imports torch

        def pin(value: Tensor) -> Tensor:
            pinned = PINNED.pinned(value.pin_memory, value.nbytes)
            return value if pinned is None else pinned

        return self.mapped(pin)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with `change(tensor)` in place of each of its tensors, which are always in the same order."""
        return Batch(**{field.name: _mapped(getattr(self, field.name), change) for field in fields(self)})

    @property
    def tensors(self) -> list[Tensor]:
        """All of them, in the order of `mapped`."""
        found: list[Tensor] = []

        def note(value: Tensor) -> Tensor:
            found.append(value)
            return value

        self.mapped(note)
        return found

    @property
    def layout(self) -> Hashable:
        """Equal for batches that differ in nothing but the values of their tensors and the texts of their prompts."""
        return tuple((field.name, _layout(getattr(self, field.name))) for field in fields(self))


PAIRED = "paired"
"""In `Batch.given`: [B, C, H, W], the latents of the images that belong to those of the batch as their counterparts."""


def split_pair(batch: Batch) -> tuple[Batch, Batch]:
    """The batch without its counterparts, and one that has them in place of its latents."""
    given = {name: value for name, value in batch.given.items() if name != PAIRED}
    return replace(batch, given=given), replace(batch, given=given, latents=batch.given[PAIRED])


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Mapping):
        return {name: _mapped(item, change) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(item, change) for item in value)
    return change(value) if hasattr(value, "dtype") else value


def _layout(value: Any) -> Hashable:
    if isinstance(value, Mapping):
        return tuple((name, _layout(item)) for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(_layout(item) for item in value)
    if hasattr(value, "dtype"):
        return tuple(value.shape), value.stride(), value.dtype
    return "" if isinstance(value, str) else value
