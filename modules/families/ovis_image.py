"""Ovis-Image: a flow transformer like FLUX.1's, without a pooled text, and the Qwen 3 encoder of Ovis 2.5.

AIDC-AI 2025. Its text has no mask: embeddings of padding are zeros, which the denoiser attends to.
"""

from __future__ import annotations

from typing import Any

from modules.families.Family import DenoiserCall, Family
from modules.families.lora_parts import JOINT_ATTENTION, JOINT_MLP, LOADED_BY_MODEL, SINGLE_MLP
from modules.families.packing import pack_2x2, token_positions, unpack_2x2
from modules.families.PublishedModel import KL_VAE_16, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

_QWEN_3_2B = Component(
    "transformers.Qwen3Model",
    {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
    },
    "Qwen3Config",
)


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    text, (height, width) = call.text_tensor("prompt_embeds"), call.shape[-2:]
    text_positions = token_positions(1, text.shape[1], like=call.timestep)
    text_positions[:, 1] = text_positions[:, 2]  # along the diagonal of the image
    return {
        "hidden_states": call.latents,
        "timestep": call.timestep / 1000,
        "encoder_hidden_states": text,
        "txt_ids": text_positions,
        "img_ids": token_positions(height // 2, width // 2, like=call.timestep),
    }


OVIS_IMAGE = Family(
    name="ovis_image",
    label="Ovis-Image",
    pipeline="OvisImagePipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", None, None, None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        options={"max_sequence_length": 256},
    ),
    objective="flow",
    align=16,
    inputs=_inputs,
    pack=pack_2x2,
    unpack=unpack_2x2,
    can_train_vae=True,
    lora_targets={"transformer": JOINT_ATTENTION},
    lora_mlp={"transformer": (*JOINT_MLP, *SINGLE_MLP)},
    lora_blocks={"transformer": ("transformer_blocks", "single_transformer_blocks")},
    latent_bytes_per_pixel=16 * 4 / 8**2,
    caption_bytes=256 * 2048 * 4,
    typical_bytes=36.7e9,
    published=PublishedModel(
        denoiser=Component("diffusers.OvisImageTransformer2DModel"),
        vae=KL_VAE_16,
        text_encoders=((_QWEN_3_2B, 284),),  # 28 of them are the instruction, which is cut off
        text={"prompt_embeds": (256, 2048)},
        side=1024,
    ),
    remarks=LOADED_BY_MODEL,
)
