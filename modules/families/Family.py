"""What a model family is: data and a few short functions, no training code and no torch at import.

Noise, target and loss live in unpacked, normalized latent space; whatever a denoiser wants otherwise
(packing, time scale, sign) is inside the family's `pack`, `unpack`, `inputs` and `output`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from modules.config.methods import methods_for
from modules.families.Codec import Codec
from modules.families.PublishedModel import PublishedModel
from modules.families.TextEncoding import Conditioning, TextEncoding

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class DenoiserCall:
    """What a family's `inputs` sees of one forward pass."""

    denoiser: nn.Module
    latents: Tensor  # noised, normalized, and packed as the family says
    timestep: Tensor  # [B], 0..1000
    text: Conditioning  # the outputs of TextEncoding by name, batched
    shape: tuple[int, ...]  # of the latents before they were packed: [B, C, H, W] or [B, C, F, H, W]
    sizes: Tensor | None = None  # [B, 6], as in Batch; given where the family `takes_sizes`
    guidance: Tensor | None = None  # [B], float32; given where the family `takes_guidance`


@dataclass(frozen=True)
class Family:
    """One kind of model.

    name: as in the settings. label: as people know it.
    pipeline: the class in diffusers; other_pipelines: further class names whose folders hold the same architecture.
    denoisers: the pipeline's components that predict; vae: the one that makes latents.
    objective: "ddpm" (the base's scheduler config says epsilon or v) or "flow".
    align: pixel sizes must be multiples of it.
    inputs: DenoiserCall -> keyword arguments of the denoiser's forward.
    output: (DenoiserCall, what the denoiser returns first) -> the prediction, packed as the latents were.
    pack: latents -> what the denoiser takes for them. unpack: (packed, shape of the latents) -> latents.
    experts: the pipeline's config -> denoiser -> the timesteps that are its own, from the first up to, but without, the
        second; None where one denoiser takes all. What trains of an expert that a step does not need stays as it is.
    codec: how the VAE turns pictures into latents and back.
    lora_targets: component -> names of its attention projections; lora_mlp: likewise of its feed-forward layers.
    lora_blocks: component -> the blocks in which layers may be adapted.
    latent_bytes_per_pixel, caption_bytes: what a cache entry takes in float32, for the estimate of disk space.
    typical_bytes: of a whole model in float32, for the same where the base is not on the disk yet.
    is_default: whether a config nobody touched is of this family.
    unused: components that training never needs and that are not loaded.
    optional: components that a model may go without -> how the names of their tensors begin in a single file.
    takes_sizes: whether the denoiser is told each picture's original size, crop and bucket (`Batch.sizes`).
    takes_guidance: whether denoisers are told a scale of guidance, as those that were distilled from guided ones.
    patch: latent cells along each side of what counts as a token where timesteps are shifted by a picture's size.
    partly_idle: components of which training reaches not every weight, so that some never get a gradient.
    fixed: component -> layers of it that never train, because other programs' files have no place for them.
    accepts: whether a model_index.json that names one of the pipelines is of this family; variants differ in it.
    made_lora: whether a LoRA file with tensors of these names and shapes is of this family and of no other.
    published: the model that the estimate of memory is made for; None where nothing is known of its size.
    can_train_vae: whether the method "vae" can train its VAE, which has to encode to a distribution.
    call_options: further arguments of the pipeline's `__call__`, beside those of `text.options`.
    single_file: the key layout in which a single-file checkpoint can be written, None where there is none: "ldm" of the
        first latent diffusion, "sgm" of Stability's later ones with two text encoders, "mmdit" with three.
    kohya_prefixes: component -> how the names of its layers begin in a LoRA file in kohya's format.
    kohya_blocks: whether that format names the denoiser's blocks as diffusers does or as a single file does.
    embedding_keys: text encoder -> the name of its vectors in the file of an embedding; empty where the method
        "embedding" can't train the family.
    """

    name: str
    label: str
    pipeline: str
    denoisers: tuple[str, ...]
    text: TextEncoding
    objective: Literal["ddpm", "flow"]
    align: int
    inputs: Callable[[DenoiserCall], dict[str, Any]]
    lora_targets: Mapping[str, tuple[str, ...]]
    lora_mlp: Mapping[str, tuple[str, ...]]
    lora_blocks: Mapping[str, tuple[str, ...]]
    latent_bytes_per_pixel: float
    caption_bytes: int
    typical_bytes: float
    is_default: bool = False
    output: Callable[[DenoiserCall, Any], Tensor] = lambda call, output: output
    pack: Callable[[Tensor], Tensor] = lambda latents: latents
    unpack: Callable[[Tensor, tuple[int, ...]], Tensor] = lambda packed, shape: packed
    experts: Callable[[Mapping[str, Any]], Mapping[str, tuple[float, float]]] | None = None
    codec: Codec = field(default_factory=Codec)
    other_pipelines: tuple[str, ...] = ()
    vae: str = "vae"
    unused: tuple[str, ...] = ()
    optional: Mapping[str, str] = field(default_factory=dict)
    takes_sizes: bool = False
    takes_guidance: bool = False
    patch: int = 2
    partly_idle: tuple[str, ...] = ()
    fixed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    accepts: Callable[[Mapping[str, Any]], bool] = lambda index: True
    made_lora: Callable[[Mapping[str, tuple[int, ...]]], bool] = lambda shapes: False
    published: PublishedModel | None = None
    can_train_vae: bool = False
    call_options: Mapping[str, Any] = field(default_factory=dict)
    single_file: Literal["ldm", "sgm", "mmdit"] | None = None
    kohya_prefixes: Mapping[str, str] = field(default_factory=dict)
    kohya_blocks: Literal["diffusers", "single_file"] = "diffusers"
    embedding_keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def pipelines(self) -> tuple[str, ...]:
        """Every class in diffusers whose folders this family can train."""
        return (self.pipeline, *self.other_pipelines)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods that can train it, as their facts say."""
        return methods_for(self)

    @property
    def text_encoders(self) -> tuple[str, ...]:
        return self.text.encoders

    @property
    def text_components(self) -> tuple[str, ...]:
        return self.text.encoders + self.text.tokenizers

    def tokenizer_of(self, encoder: str) -> str:
        return self.text.tokenizers[self.text.encoders.index(encoder)]
