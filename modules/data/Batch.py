"""One micro-batch as the loss wants it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Samples of one shape. Legend: B samples, C channels, H W latent cells or pixels.

    weight: [B], what each sample's loss is multiplied by; 0 in a batch that only keeps this rank in step.
    count: samples that count in the step's mean; 0 in such a batch.
    noise: [B, C, H, W], in latent space. u: [B], uniform draws in [0, 1) for the timesteps.
    latents: [B, C, H, W], clean and normalised, or None where the method takes pixels.
    pixels: [B, 3, H, W] in [-1, 1], or None.
    text: conditioning by name, or None where the text encoder trains and encodes `prompts` in the step.
    """

    weight: Tensor
    count: int
    noise: Tensor
    u: Tensor
    prompts: list[str]
    latents: Tensor | None = None
    pixels: Tensor | None = None
    text: dict[str, Tensor] | None = None

    def to(self, device: torch.device) -> Batch:
        if device.type == "cpu":
            return self
        values = {field.name: _to(getattr(self, field.name), device) for field in fields(self)}
        return Batch(**values)

    def pinned(self) -> Batch:
        """In page-locked memory, from which a copy to a GPU does not wait."""
        values = {field.name: _pin(getattr(self, field.name)) for field in fields(self)}
        return Batch(**values)


def _to(value, device):
    if isinstance(value, dict):
        return {name: _to(item, device) for name, item in value.items()}
    return value.to(device, non_blocking=True) if hasattr(value, "to") else value


def _pin(value):
    if isinstance(value, dict):
        return {name: _pin(item) for name, item in value.items()}
    return value.pin_memory() if hasattr(value, "pin_memory") else value
