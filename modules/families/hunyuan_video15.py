"""HunyuanVideo 1.5 from text to video: double-stream blocks on a 16x VAE, with Qwen 2.5 VL, and ByT5 for drawn text.

Tencent 2025, arXiv 2511.18870. Only the quoted parts of a prompt pass through ByT5. The input has further channels and
tokens for an image that is given, which are zero here. Distilled versions that also take the end of a step are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modules.families.Codec import Codec
from modules.families.Family import DenoiserCall, Family
from modules.families.frames import decode_frames, encode_frames, shape_by_ratios
from modules.families.hunyuan_names import HUNYUAN_COMFYUI_NAMES
from modules.families.lora_parts import JOINT_ATTENTION, JOINT_MLP, LOADED_BY_MODEL
from modules.families.PublishedModel import GLYPH_BYT5, QWEN_2_5_VL, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from torch import Tensor

    from modules.families.Codec import Posterior

_NUM_TOKENS, _NUM_LETTERS, _NUM_IMAGE_TOKENS = 1000, 256, 729  # of every text and image
_INSTRUCTION = 108  # tokens before each prompt, which are cut off
_QWEN = Component("transformers.Qwen2_5_VLTextModel", QWEN_2_5_VL.config["text_config"], "Qwen2_5_VLTextConfig")


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    latents, config = call.latents, call.denoiser.config
    image = latents.new_zeros(len(latents), config.in_channels - latents.shape[1], *latents.shape[2:])
    return {
        "hidden_states": torch.cat([latents, image], 1),
        "image_embeds": latents.new_zeros(len(latents), _NUM_IMAGE_TOKENS, config.image_embed_dim),
        **text_inputs(call),
    }


def text_inputs(call: DenoiserCall) -> dict[str, Any]:
    """The inputs beside the latents, of which models for images have the same."""
    return {
        "timestep": call.timestep.to(call.latents.dtype),
        "encoder_hidden_states": call.text["prompt_embeds"],
        "encoder_attention_mask": call.text["prompt_embeds_mask"],
        "encoder_hidden_states_2": call.text["prompt_embeds_2"],
        "encoder_attention_mask_2": call.text["prompt_embeds_mask_2"],
    }


def _encode(vae: ModelMixin, pixels: Tensor) -> Posterior:
    return encode_frames(_sliced(vae), pixels)


def _decode(vae: ModelMixin, raw_BCFHW: Tensor) -> Tensor:
    return decode_frames(_sliced(vae), raw_BCFHW)


def _sliced(vae: Any) -> Any:
    """Corrects a fault of diffusers 0.42: the attention of an AutoencoderKLHunyuanVideo15 takes one clip at a time."""
    vae.enable_slicing()
    return vae


def _call_attributes(pipe: DiffusionPipeline, width: int | None, height: int | None, guidance: float) -> dict[str, Any]:
    """The pipeline takes the guidance scale from a component."""
    from diffusers import ClassifierFreeGuidance

    return {"guider": ClassifierFreeGuidance(guidance_scale=guidance)}


HUNYUAN_VIDEO_15 = Family(
    name="hunyuan_video15",
    label="HunyuanVideo 1.5",
    pipeline="HunyuanVideo15Pipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", "prompt_embeds_mask", "prompt_embeds_2", "prompt_embeds_mask_2"),
        encoders=("text_encoder", "text_encoder_2"),
        tokenizers=("tokenizer", "tokenizer_2"),
    ),
    objective="flow",
    align=16,
    frame_step=4,
    fps=24.0,
    codec=Codec(encode=_encode, decode=_decode, shape=shape_by_ratios),
    inputs=_inputs,
    unsupported=lambda config: "the distilled HunyuanVideo 1.5" if config.get("use_meanflow") else "",
    call_attributes=_call_attributes,
    unused=("guider",),
    read_when_built=("vae",),
    patch_size=1,
    lora_targets={"transformer": JOINT_ATTENTION},
    lora_mlp={"transformer": JOINT_MLP},
    lora_blocks={"transformer": ("transformer_blocks",)},
    layer_names={"transformer": HUNYUAN_COMFYUI_NAMES},
    latent_bytes_per_pixel=32 * 4 / 16**2,
    caption_bytes=_NUM_TOKENS * (3584 + 1) * 4 + _NUM_LETTERS * (1472 + 1) * 4,
    typical_bytes=66e9,
    # no layer after the one whose output is used, and no prompt without quotes reaches the second encoder
    partly_unused=("text_encoder", "text_encoder_2", "transformer"),
    published=PublishedModel(
        denoiser=Component("diffusers.HunyuanVideo15Transformer3DModel"),
        vae=Component("diffusers.AutoencoderKLHunyuanVideo15"),
        text_encoders=((_QWEN, _NUM_TOKENS + _INSTRUCTION), (GLYPH_BYT5, _NUM_LETTERS)),
        text={
            "prompt_embeds": (_NUM_TOKENS, 3584),
            "prompt_embeds_mask": (_NUM_TOKENS,),
            "prompt_embeds_2": (_NUM_LETTERS, 1472),
            "prompt_embeds_mask_2": (_NUM_LETTERS,),
        },
        side=960,
    ),
    distilled={"HunyuanVideo 1.5, distilled": "HunyuanVideo 1.5; the distilled ones can't be trained"},
    remarks=f"""Saved without the component that sets its guidance. In diffusers, set `pipe.guider` to a
    `ClassifierFreeGuidance` with the scale of your choice. {LOADED_BY_MODEL}""",
)
