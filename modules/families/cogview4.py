"""CogView4: a flow transformer over text and image, with GLM-4.

Z.ai 2025. Texts are padded on the left to multiples of 16 tokens, without a mask. Like Stable Diffusion XL, it takes
the original size, crop and bucket of each image.
"""

from __future__ import annotations

from typing import Any

from modules.families.conditions import Sizes
from modules.families.Family import DenoiserCall, Family
from modules.families.PublishedModel import Component, PublishedModel
from modules.families.TextEncoding import TextEncoding


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    original_size, crop, bucket = call.given["sizes"].split(2, dim=1)
    return {
        "hidden_states": call.latents,
        "encoder_hidden_states": call.text["prompt_embeds"],
        "timestep": call.timestep,
        "original_size": original_size,
        "target_size": bucket,
        "crop_coords": crop,
    }


COGVIEW4_MODEL = PublishedModel(  # of zai-org/CogView4-6B, as in diffusers' script that converts it
    denoiser=Component(
        "diffusers.CogView4Transformer2DModel",
        {"num_layers": 28, "num_attention_heads": 32, "attention_head_dim": 128},
    ),
    vae=Component(
        "diffusers.AutoencoderKL",
        {
            "down_block_types": ("DownEncoderBlock2D",) * 4,
            "up_block_types": ("UpDecoderBlock2D",) * 4,
            "block_out_channels": (128, 512, 1024, 1024),
            "layers_per_block": 3,
            "latent_channels": 16,
            "use_quant_conv": False,
            "use_post_quant_conv": False,
            "mid_block_add_attention": False,
        },
    ),
    text_encoders=((Component("transformers.GlmModel", config_class="GlmConfig"), 128),),
    text={"prompt_embeds": (128, 4096)},
    side=1024,
)

COGVIEW4 = Family(
    name="cogview4",
    label="CogView4",
    pipeline="CogView4Pipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        options={"max_sequence_length": 1024},
        collate="group",
    ),
    objective="flow",
    align=16,
    inputs=_inputs,
    conditions=(Sizes(),),
    shift_law="root",
    can_train_vae=True,
    lora_targets={"transformer": ("attn1.to_q", "attn1.to_k", "attn1.to_v", "attn1.to_out.0")},
    lora_mlp={"transformer": ("ff.net.0.proj", "ff.net.2")},
    lora_blocks={"transformer": ("transformer_blocks",)},
    latent_bytes_per_pixel=16 * 4 / 8**2,
    caption_bytes=128 * 4096 * 4,  # for a caption of about 128 tokens
    typical_bytes=62.2e9,
    partly_unused=("text_encoder",),  # the denoiser uses the input of its last layer
    further_classes={"tokenizer": ("transformers.AutoTokenizer",)},
    published=COGVIEW4_MODEL,
)
