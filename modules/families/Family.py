"""What a model family is: data and a few short functions, no training code and no torch at import.

Noise, target and loss live in unpacked, normalised latent space; whatever a denoiser wants otherwise
(packing, time scale, sign) is inside the family's `inputs` and `output`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class TextEncoding:
    """How prompts become conditioning, by the pipeline's own `encode_prompt`.

    outputs: a name for each value that `encode_prompt` returns, equal to the argument of the pipeline's `__call__`
        that takes it, so that a cached record serves training and sampling; None drops the value.
    encoders, tokenizers: the pipeline's components that are needed.
    options: further arguments of `encode_prompt` (and, where it takes them, of `__call__`).
    """

    outputs: tuple[str | None, ...]
    encoders: tuple[str, ...]
    tokenizers: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DenoiserCall:
    """What a family's `inputs` sees of one forward pass."""

    denoiser: nn.Module
    latents: Tensor  # [B, C, H, W], noised, normalised
    timestep: Tensor  # [B], 0..1000
    text: Mapping[str, Tensor]  # the outputs of TextEncoding by name, batched


@dataclass(frozen=True)
class Family:
    """One kind of model.

    name: as in the settings. label: as people know it.
    pipeline: the class in diffusers; other_pipelines: further class names whose folders hold the same architecture.
    denoisers: the pipeline's components that predict; vae: the one that makes latents.
    objective: "ddpm" (the base's scheduler config says epsilon or v) or "flow".
    align: pixel sizes must be multiples of it.
    inputs: DenoiserCall -> keyword arguments of the denoiser's forward.
    vae_stats: vae -> (shift, scale), normalised latents = (raw - shift) * scale.
    lora_targets: component -> names of its attention projections; lora_mlp: likewise of its feed-forward layers.
    lora_blocks: component -> the blocks in which layers may be adapted.
    latent_bytes_per_pixel, caption_bytes: what a cache entry takes in float32, for the estimate of disk space.
    typical_bytes: of a whole model in float32, for the same where the base is not on the disk yet.
    unused: components that training never needs and that are not loaded.
    single_file: the key layout in which a single-file checkpoint can be written, None where there is none.
    """

    name: str
    label: str
    pipeline: str
    denoisers: tuple[str, ...]
    text: TextEncoding
    objective: Literal["ddpm", "flow"]
    align: int
    inputs: Callable[[DenoiserCall], dict[str, Any]]
    vae_stats: Callable[[nn.Module], tuple[float, float]]
    lora_targets: Mapping[str, tuple[str, ...]]
    lora_mlp: Mapping[str, tuple[str, ...]]
    lora_blocks: Mapping[str, tuple[str, ...]]
    latent_bytes_per_pixel: float
    caption_bytes: int
    typical_bytes: float
    other_pipelines: tuple[str, ...] = ()
    vae: str = "vae"
    unused: tuple[str, ...] = ()
    single_file: Literal["sd"] | None = None

    @property
    def pipelines(self) -> tuple[str, ...]:
        """Every class in diffusers whose folders this family can train."""
        return (self.pipeline, *self.other_pipelines)

    @property
    def text_components(self) -> tuple[str, ...]:
        return self.text.encoders + self.text.tokenizers


def scaling_and_shift(vae: nn.Module) -> tuple[float, float]:
    """(shift, scale) of an AutoencoderKL, from its config."""
    return getattr(vae.config, "shift_factor", None) or 0.0, vae.config.scaling_factor
