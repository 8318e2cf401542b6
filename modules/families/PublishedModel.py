"""The architecture of a family's published model, from which the memory estimate is computed.

`scripts/published_models.py` builds the components without loading weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Component:
    """A component of a pipeline.

    class_name: with its module, as in "diffusers.AutoencoderKL".
    config: the values of its config.json that differ from the defaults.
    config_class: the class of its config, for components from transformers.
    """

    class_name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    config_class: str = ""


@dataclass(frozen=True)
class PublishedModel:
    """The components of a model and the shapes of their inputs.

    denoiser: each of the denoisers, if the family has several.
    text_encoders: (component, number of prompt tokens), in the order of `Family.text.encoders`.
    text: name of a text encoding output -> its shape for one prompt.
    side: the native resolution in pixels, as the side of a square.
    connectors: the components in `Family.text.connectors`.
    image_features: the shape of what `FirstFrame.features` gives of one clip; () where it has none.
    """

    denoiser: Component
    vae: Component
    text_encoders: tuple[tuple[Component, int], ...]
    text: Mapping[str, tuple[int, ...]]
    side: int
    connectors: tuple[Component, ...] = field(default=(), repr=False)
    image_features: tuple[int, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Variant:
    """A further published model of a family, declared in its file.

    name: with which the names of its presets begin. family: its name. label: as shown to users.
    base: the name on the Hugging Face Hub.
    published, typical_bytes: as in Family, where the sizes are not those of the family's model.
    """

    name: str
    family: str
    label: str
    base: str
    published: PublishedModel | None = None
    typical_bytes: float | None = None


# --- components shared by several families ----------------------------------------------------------------------------

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
# ByT5-small, which reads text to be drawn letter by letter
GLYPH_BYT5 = Component(
    "transformers.T5EncoderModel",
    {"vocab_size": 1510, "d_model": 1472, "d_ff": 3584, "num_layers": 12, "num_heads": 6},
    "T5Config",
)
# Qwen2.5-VL-7B
QWEN_2_5_VL = Component(
    "transformers.Qwen2_5_VLForConditionalGeneration",
    {
        "text_config": {
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        },
        "vision_config": {"hidden_size": 1280},
    },
    "Qwen2_5_VLConfig",
)
# Qwen3-VL-4B, -8B and -32B
_QWEN_3_VL_ROPE = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
QWEN_3_VL_4B = Component(
    "transformers.Qwen3VLModel",
    {
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "rope_parameters": _QWEN_3_VL_ROPE,
        },
        "vision_config": {"hidden_size": 1024, "intermediate_size": 4096, "depth": 24, "out_hidden_size": 2560},
    },
    "Qwen3VLConfig",
)
QWEN_3_VL_8B = Component(
    "transformers.Qwen3VLModel",
    {
        "text_config": {
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "rope_parameters": _QWEN_3_VL_ROPE,
        },
        "vision_config": {"hidden_size": 1152, "intermediate_size": 4304, "depth": 27, "out_hidden_size": 4096},
    },
    "Qwen3VLConfig",
)
QWEN_3_VL_32B = Component(
    "transformers.Qwen3VLModel",
    {
        "text_config": {
            "hidden_size": 5120,
            "intermediate_size": 25600,
            "num_hidden_layers": 64,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "rope_parameters": _QWEN_3_VL_ROPE,
        },
        "vision_config": {"hidden_size": 1152, "intermediate_size": 4304, "depth": 27, "out_hidden_size": 5120},
    },
    "Qwen3VLConfig",
)
# with its vision tower
GEMMA_3_12B = Component(
    "transformers.Gemma3ForConditionalGeneration",
    {
        "text_config": {
            "hidden_size": 3840,
            "intermediate_size": 15360,
            "num_hidden_layers": 48,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "sliding_window": 1024,
        },
        "vision_config": {
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "image_size": 896,
            "patch_size": 14,
        },
    },
    "Gemma3Config",
)
# which reads images and sound without towers
GEMMA_4_12B = Component(
    "transformers.Gemma4UnifiedForConditionalGeneration",
    {
        "text_config": {
            "hidden_size": 3840,
            "intermediate_size": 15360,
            "num_hidden_layers": 48,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
        },
        "vision_config": {},
        "audio_config": {},
    },
    "Gemma4UnifiedConfig",
)
# the encoder of T5Gemma 2 4B, with its vision tower
T5_GEMMA_2_4B = Component(
    "transformers.T5Gemma2Encoder",
    {
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "sliding_window": 1024,
            "dropout_rate": 0.0,
        },
        "vision_config": GEMMA_3_12B.config["vision_config"],
    },
    "T5Gemma2EncoderConfig",
)
