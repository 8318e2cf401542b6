"""One micro-batch as the loss wants it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from modules.families.TextEncoding import Conditioning


@dataclass(frozen=True)
class Batch:
    """Samples of one shape. Legend: B samples, C channels, H W latent cells or pixels.

    Latents of video models, with noise and mask, have an axis of frames behind C.

    weight: [B], what each sample's loss is multiplied by; 0 in a batch that only keeps this rank in step.
    count: samples that count in the step's mean; 0 in such a batch.
    noise: [B, C, H, W], in latent space. u: [B], uniform draws in [0, 1) for the timesteps.
    latents: [B, C, H, W], clean and normalised, or None where the method takes pixels.
    pixels: [B, 3, H, W] in [-1, 1], or None.
    sizes: [B, 6], height and width of the picture before it was resized, top and left of the crop in the resized
        picture, height and width of the crop, in pixels; None for families that don't take them.
    input_noise: [B, C, H, W], what the latents are noised with where that is not `noise`, which stays the target; None
        where it is.
    mask: [B, 1, H, W], 1 where a sample is learnt and 0 where it is not, or None where all are learnt whole.
    prior: bool[B], samples whose target is the prediction of the model before the training, or None.
    unconditional: bool[B], samples whose conditioning is all zeros, or None.
    cpu_u: `u` on the CPU, of a batch that is elsewhere; see `host_u`.
    text: conditioning by name, or None where the text encoder trains and encodes `prompts` in the step.
    """

    weight: Tensor
    count: int
    noise: Tensor
    u: Tensor
    prompts: list[str]
    latents: Tensor | None = None
    pixels: Tensor | None = None
    sizes: Tensor | None = None
    input_noise: Tensor | None = None
    mask: Tensor | None = None
    prior: Tensor | None = None
    unconditional: Tensor | None = None
    text: Conditioning | None = None
    cpu_u: Tensor | None = None

    @property
    def host_u(self) -> Tensor:
        """`u` on the CPU, where reading it waits for no device."""
        return self.u if self.cpu_u is None else self.cpu_u

    def to(self, device: torch.device) -> Batch:
        if device.type == "cpu":
            return self
        values = {field.name: _to(getattr(self, field.name), device) for field in fields(self)}
        return Batch(**{**values, "cpu_u": self.host_u})

    def pinned(self) -> Batch:
        """In page-locked memory, from which a copy to a GPU does not wait."""
        values = {field.name: _pin(getattr(self, field.name)) for field in fields(self)}
        return Batch(**values)


def _to(value, device):
    if isinstance(value, dict):
        return {name: _to(item, device) for name, item in value.items()}
    if isinstance(value, list):
        return [_to(item, device) for item in value]
    return value.to(device, non_blocking=True) if hasattr(value, "to") else value


def _pin(value):
    if isinstance(value, dict):
        return {name: _pin(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_pin(item) for item in value]
    return value.pin_memory() if hasattr(value, "pin_memory") else value
