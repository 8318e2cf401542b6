"""Sana: a linear transformer on a 32x autoencoder, with Gemma 2, which gets an instruction before each prompt.

Xie et al. 2024, arXiv 2410.10629; the instruction (section 3.1) is the one in diffusers' pipeline.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from modules.families.Codec import Codec
from modules.families.Family import Family
from modules.families.PublishedModel import Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from torch import Tensor

_INSTRUCTION = [
    "Given a user prompt, generate an 'Enhanced prompt' that provides detailed visual descriptions suitable "
    "for image generation. Evaluate the level of detail in the user prompt:",
    "- If the prompt is simple, focus on adding specifics about colors, shapes, sizes, textures, and spatial "
    "relationships to create vivid and concrete scenes.",
    "- If the prompt is already detailed, refine and enhance the existing details slightly without overcomplicating.",
    "Here are examples of how to transform or refine prompts:",
    "- User Prompt: A cat sleeping -> Enhanced: A small, fluffy white cat curled up in a round shape, "
    "sleeping peacefully on a warm sunny windowsill, surrounded by pots of blooming red flowers.",
    "- User Prompt: A busy city street -> Enhanced: A bustling city street scene at dusk, featuring glowing "
    "street lamps, a diverse crowd of people in colorful clothing, and a double-decker bus passing by "
    "towering glass skyscrapers.",
    "Please generate only the enhanced description for the prompt below and avoid including any additional "
    "commentary or evaluations:",
    "User Prompt: ",
]
GEMMA_2 = (Component("transformers.Gemma2Model", config_class="Gemma2Config"), 600)  # and its number of tokens
TEXT = {"prompt_embeds": (300, 2304), "prompt_attention_mask": (300,)}
_ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")


def _encode(vae: ModelMixin, pixels_BCHW: Tensor) -> SimpleNamespace:
    """The autoencoder is deterministic."""
    latents = vae.encode(pixels_BCHW).latent
    return SimpleNamespace(mode=lambda: latents)


def _shape(vae: ModelMixin, width: int, height: int, num_frames: int) -> tuple[int, ...]:
    factor = 2 ** (len(vae.config.encoder_block_out_channels) - 1)
    return vae.config.latent_channels, height // factor, width // factor


SANA = Family(
    name="sana",
    label="Sana",
    pipeline="SanaPipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", "prompt_attention_mask", None, None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        options={"max_sequence_length": 300, "complex_human_instruction": _INSTRUCTION},
        empty_options={"complex_human_instruction": None},  # as the pipeline encodes negative prompts
    ),
    objective="flow",
    align=32,
    codec=Codec(encode=_encode, shape=_shape),
    inputs=lambda call: {
        "hidden_states": call.latents,
        "timestep": call.timestep * call.denoiser.config.timestep_scale,
        "encoder_hidden_states": call.text["prompt_embeds"],
        "encoder_attention_mask": call.text["prompt_attention_mask"],
    },
    patch_size=1,
    call_options={"use_resolution_binning": False},  # keep the requested size
    lora_targets={"transformer": _ATTENTION},
    lora_mlp={"transformer": ("ff.conv_inverted", "ff.conv_point")},
    lora_blocks={"transformer": ("transformer_blocks",)},
    latent_bytes_per_pixel=32 * 4 / 32**2,
    caption_bytes=300 * (2304 * 4 + 8),
    typical_bytes=18e9,
    published=PublishedModel(
        denoiser=Component("diffusers.SanaTransformer2DModel"),
        vae=Component(
            "diffusers.AutoencoderDC",
            {
                "encoder_block_types": ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
                "decoder_block_types": ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
                "downsample_block_type": "conv",
                "upsample_block_type": "interpolate",
            },
        ),
        text_encoders=(GEMMA_2,),
        text=TEXT,
        side=1024,
    ),
)
