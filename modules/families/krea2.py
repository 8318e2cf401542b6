"""Krea 2: a flow transformer over text and packed latents, with Qwen-Image's autoencoder and layers of Qwen 3 VL.

The chat template's suffix comes after the padding of the prompt, so texts have one length and a mask.
"""

from __future__ import annotations

from typing import Any

from modules.families.Family import DenoiserCall, Family
from modules.families.LayerNames import DIFFUSERS_FILE_WITHOUT_ALPHA, LayerNames
from modules.families.packing import token_positions
from modules.families.PublishedModel import QWEN_3_VL_4B, Component, PublishedModel
from modules.families.qwen_image import QWEN_CODEC, pack_frame, unpack_frame
from modules.families.TextEncoding import TextEncoding

_ATTENTION = ("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_gate", "attn.to_out.0")

_LAYERS = {
    **dict(zip(_ATTENTION, ("attn.wq", "attn.wk", "attn.wv", "attn.gate", "attn.wo"), strict=True)),
    **{f"ff.{name}": f"mlp.{name}" for name in ("gate", "up", "down")},
}
_BLOCKS = {
    "transformer_blocks": "blocks",
    **{f"text_fusion.{kind}_blocks": f"txtfusion.{kind}_blocks" for kind in ("layerwise", "refiner")},
}
_ORIGINAL_NAMES = LayerNames(  # of its makers' model
    "diffusion_model.",
    names={
        f"{ours}.{{}}.{layer}": f"{theirs}.{{}}.{their_layer}"
        for ours, theirs in _BLOCKS.items()
        for layer, their_layer in _LAYERS.items()
    },
)


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    text, (height, width) = call.text_tensor("prompt_embeds"), call.shape[-2:]
    image_positions = token_positions(height // 2, width // 2, like=call.timestep)
    return {
        "hidden_states": call.latents,
        "timestep": call.timestep / 1000,
        "encoder_hidden_states": text,
        "encoder_attention_mask": call.text["prompt_embeds_mask"],
        "position_ids": torch.cat([image_positions.new_zeros(text.shape[1], 3), image_positions]),
    }


KREA_2 = Family(
    name="krea2",
    label="Krea 2",
    pipeline="Krea2Pipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", "prompt_embeds_mask"),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        options={"max_sequence_length": 512},
    ),
    objective="flow",
    align=16,
    codec=QWEN_CODEC,
    inputs=_inputs,
    pack=pack_frame,
    unpack=unpack_frame,
    lora_targets={"transformer": _ATTENTION},
    lora_mlp={"transformer": ("ff.gate", "ff.up", "ff.down")},
    lora_blocks={"transformer": ("transformer_blocks",)},
    original_names=_ORIGINAL_NAMES,
    layer_names={"transformer": DIFFUSERS_FILE_WITHOUT_ALPHA},
    latent_bytes_per_pixel=16 * 4 / 8**2,
    caption_bytes=512 * (12 * 2560 * 4 + 1),
    typical_bytes=69e9,
    partly_unused=("text_encoder",),  # its vision tower and the layer above those that the denoiser reads
    further_classes={"tokenizer": ("transformers.AutoTokenizer",)},
    published=PublishedModel(
        denoiser=Component("diffusers.Krea2Transformer2DModel"),
        vae=Component("diffusers.AutoencoderKLQwenImage"),
        text_encoders=((QWEN_3_VL_4B, 546),),
        text={"prompt_embeds": (512, 12, 2560), "prompt_embeds_mask": (512,)},
        side=1024,
    ),
    distilled={"Krea 2 Turbo": "Krea 2 Raw"},
)
