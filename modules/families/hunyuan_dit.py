"""Hunyuan-DiT: a transformer with long skip connections, with a bilingual BERT and T5; v-prediction.

Tencent 2024, arXiv 2405.08748. It learns a variance, as PixArt-Sigma. Before 1.2 it also took a style and sizes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from modules.families.checkpointing import checkpoint_each
from modules.families.Family import DenoiserCall, Family
from modules.families.hunyuan_dit_names import HUNYUAN_DIT_NAMES
from modules.families.lora_parts import LOADED_BY_PEFT
from modules.families.PublishedModel import KL_VAE, T5_XXL, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin

_ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")
_PIXELS_PER_CELL = 8
_BERT_TOKENS, _T5_TOKENS = 77, 256  # of every text
_FIRST = {"text_encoder_index": 0, "max_sequence_length": _BERT_TOKENS}
_SECOND = {"text_encoder_index": 1, "max_sequence_length": _T5_TOKENS}
_BERT = {
    "vocab_size": 47020,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}
_MT5_XL = {**T5_XXL.config, "vocab_size": 250112, "d_model": 2048, "d_ff": 5120, "num_heads": 32}


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch
    from diffusers.models.embeddings import get_2d_rotary_pos_embed
    from diffusers.pipelines.hunyuandit.pipeline_hunyuandit import get_resize_crop_region_for_grid

    latents, config, (height, width) = call.latents, call.denoiser.config, call.shape[-2:]
    grid = height // config.patch_size, width // config.patch_size
    region = get_resize_crop_region_for_grid(grid, 512 // _PIXELS_PER_CELL // config.patch_size)
    rotary = get_2d_rotary_pos_embed(config.attention_head_dim, region, grid, device=latents.device, output_type="pt")
    sizes = (1024, 1024, height * _PIXELS_PER_CELL, width * _PIXELS_PER_CELL, 0, 0)  # original, of the image, crop
    return {
        "hidden_states": latents,
        "timestep": call.timestep.to(latents.dtype),
        "encoder_hidden_states": call.text["prompt_embeds"],
        "text_embedding_mask": call.text_tensor("prompt_attention_mask").to(latents.device),
        "encoder_hidden_states_t5": call.text["prompt_embeds_2"],
        "text_embedding_mask_t5": call.text["prompt_attention_mask_2"],
        "image_meta_size": torch.cat([latents.new_full((len(latents), 1), size) for size in sizes], dim=1),
        "style": latents.new_zeros(len(latents), dtype=torch.long),
        "image_rotary_emb": rotary,
    }


def _adapt(denoiser: ModelMixin) -> None:
    """diffusers has no gradient checkpointing for it, and does not name its blocks."""
    vars(denoiser)["enable_gradient_checkpointing"] = partial(checkpoint_each, denoiser.blocks)
    vars(denoiser)["_no_split_modules"] = [type(denoiser.blocks[0]).__name__]


HUNYUAN_DIT = Family(
    name="hunyuan_dit",
    label="Hunyuan-DiT",
    pipeline="HunyuanDiTPipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", None, "prompt_attention_mask", None),
        encoders=("text_encoder", "text_encoder_2"),
        tokenizers=("tokenizer", "tokenizer_2"),
        options=_FIRST,
        further_calls=((_SECOND, ("prompt_embeds_2", None, "prompt_attention_mask_2", None)),),
    ),
    objective="ddpm",
    align=16,
    inputs=_inputs,
    output=lambda call, output: output[:, : call.denoiser.config.in_channels],
    adapt=_adapt,
    call_options={"use_resolution_binning": False},  # keep the requested size
    unused=("safety_checker", "feature_extractor"),
    can_train_vae=True,
    lora_targets={"transformer": tuple(f"{part}.{name}" for part in ("attn1", "attn2") for name in _ATTENTION)},
    lora_mlp={"transformer": ("ff.net.0.proj", "ff.net.2")},
    lora_blocks={"transformer": ("blocks",)},
    layer_names={"transformer": HUNYUAN_DIT_NAMES},
    latent_bytes_per_pixel=4 * 4 / _PIXELS_PER_CELL**2,
    caption_bytes=_BERT_TOKENS * (1024 * 4 + 8) + _T5_TOKENS * (2048 * 4 + 8),
    typical_bytes=14.5e9,
    partly_unused=("text_encoder",),  # its pooled output
    published=PublishedModel(  # version 1.2
        denoiser=Component(
            "diffusers.HunyuanDiT2DModel",
            {
                "in_channels": 4,
                "patch_size": 2,
                "sample_size": 128,
                "hidden_size": 1408,
                "num_layers": 40,
                "mlp_ratio": 4.3637,
                "use_style_cond_and_image_meta_size": False,
            },
        ),
        vae=KL_VAE,
        text_encoders=(
            (Component("transformers.BertModel", _BERT, "BertConfig"), _BERT_TOKENS),
            (Component("transformers.T5EncoderModel", _MT5_XL, "T5Config"), _T5_TOKENS),
        ),
        text={
            "prompt_embeds": (_BERT_TOKENS, 1024),
            "prompt_attention_mask": (_BERT_TOKENS,),
            "prompt_embeds_2": (_T5_TOKENS, 2048),
            "prompt_attention_mask_2": (_T5_TOKENS,),
        },
        side=1024,
    ),
    remarks=LOADED_BY_PEFT,
)
