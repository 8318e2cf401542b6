"""A family's model as its makers have published it: what the estimate of memory is counted from.

Nothing here is loaded: `scripts/count_memory.py` builds the parts without weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Component:
    """A component.

    class_name: with its library, as in "diffusers.AutoencoderKL". config_class: of its config, in transformers.
    config: as in its config.json, where it differs from the defaults.
    """

    class_name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    config_class: str = ""


@dataclass(frozen=True)
class PublishedModel:
    """The parts of a model, and what goes through them.

    denoiser: each of them, where a family has several. text_encoders: with the tokens of a prompt, in the order of
    `Family.text.encoders`. text: name of an output -> its shape for one prompt.
    side: of the square pictures, in pixels, that the model was made for.
    """

    denoiser: Component
    vae: Component
    text_encoders: tuple[tuple[Component, int], ...]
    text: Mapping[str, tuple[int, ...]]
    side: int


# --- parts that several families have ---------------------------------------------------------------------------------

KL_VAE = Component(
    "diffusers.AutoencoderKL",
    {
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
        "block_out_channels": (128, 256, 512, 512),
        "layers_per_block": 2,
    },
)
KL_VAE_16 = Component(
    "diffusers.AutoencoderKL",
    {**KL_VAE.config, "latent_channels": 16, "use_quant_conv": False, "use_post_quant_conv": False},
)
_CLIP_L = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12}
_CLIP_G = {"hidden_size": 1280, "intermediate_size": 5120, "num_attention_heads": 20, "num_hidden_layers": 32}
CLIP_L = Component("transformers.CLIPTextModel", _CLIP_L, "CLIPTextConfig")
CLIP_L_PROJECTED = Component(
    "transformers.CLIPTextModelWithProjection", {**_CLIP_L, "projection_dim": 768}, "CLIPTextConfig"
)
CLIP_G = Component(
    "transformers.CLIPTextModelWithProjection",
    {**_CLIP_G, "hidden_act": "gelu", "projection_dim": 1280},
    "CLIPTextConfig",
)
T5_XXL = Component(
    "transformers.T5EncoderModel",
    {"d_model": 4096, "d_ff": 10240, "num_layers": 24, "num_heads": 64, "feed_forward_proj": "gated-gelu"},
    "T5Config",
)
