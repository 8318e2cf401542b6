"""Motif-Video from text or an image to video: joint blocks as FLUX.1's, a decoder, and Wan 2.1's autoencoder.

Motif Technologies 2026, arXiv 2604.16503. The decoder starts from the noised latents and sees what joint blocks make of
them. A first frame is in further channels and, as the text encoder's vision tower sees it, in front of the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from modules.families.conditions import FirstFrame
from modules.families.Family import DenoiserCall, Family
from modules.families.latents import encode_pixels
from modules.families.lora_parts import JOINT_ATTENTION, JOINT_MLP, LOADED_BY_MODEL, SINGLE_MLP
from modules.families.PublishedModel import T5_GEMMA_2_4B, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding
from modules.families.wan21 import WAN_21, WAN_21_MODEL

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

_NUM_TOKENS, _TEXT_WIDTH = 512, 2560  # of every text
_NUM_IMAGE_TOKENS, _IMAGE_WIDTH = (896 // 14) ** 2, 1152  # of the vision tower
_CROSS_ATTENTION = tuple(f"cross_attn.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0"))


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    image, mask = torch.zeros_like(call.latents), torch.zeros_like(call.latents[:, :1])
    if (first := call.beside("first_frame")) is not None:
        image[:, :, :1] = first
        mask[:, :, 0] = 1
    return {
        "hidden_states": torch.cat([call.latents, image, mask], 1),
        "timestep": call.timestep,
        "encoder_hidden_states": call.text["prompt_embeds"],
        "encoder_attention_mask": call.text["prompt_attention_mask"],
        "image_embeds": call.beside("image_features"),
    }


def _image_features(pipe: Any, images: list[Image]) -> Tensor:
    from diffusers import MotifVideoImage2VideoPipeline

    pixels = pipe.video_processor.preprocess(images[0]) / 2 + 0.5
    tower, device = pipe.text_encoder.vision_tower, pipe.text_encoder.device
    return MotifVideoImage2VideoPipeline._get_image_embeds(tower, pipe.feature_extractor, pixels, device)[0]


def _call_attributes(pipe: Any, width: int | None, height: int | None, guidance: float) -> Mapping[str, Any]:
    """The pipeline takes the guidance scale from a component."""
    from diffusers import ClassifierFreeGuidance

    return {"guider": ClassifierFreeGuidance(guidance_scale=guidance)}


MOTIF_VIDEO = Family(
    name="motif_video",
    label="Motif-Video",
    pipeline="MotifVideoPipeline",
    other_pipelines=("MotifVideoImage2VideoPipeline",),
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", None, "prompt_attention_mask", None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        options={"max_sequence_length": _NUM_TOKENS},
    ),
    objective="flow",
    align=16,
    frame_step=4,
    fps=24.0,
    codec=WAN_21.codec,
    inputs=_inputs,
    conditions=(
        FirstFrame(
            "MotifVideoImage2VideoPipeline",
            beside=True,
            beside_pixels=_NUM_IMAGE_TOKENS * 16**2,
            encode=encode_pixels,
            components=("text_encoder", "feature_extractor"),
            features=_image_features,
        ),
    ),
    call_attributes=_call_attributes,
    unused=("guider",),
    lora_targets={"transformer": (*JOINT_ATTENTION, *_CROSS_ATTENTION)},
    lora_mlp={"transformer": (*JOINT_MLP, *SINGLE_MLP)},
    lora_blocks={"transformer": ("transformer_blocks", "single_transformer_blocks")},
    latent_bytes_per_pixel=WAN_21.latent_bytes_per_pixel,
    caption_bytes=_NUM_TOKENS * (_TEXT_WIDTH * 4 + 1),
    typical_bytes=26e9,
    partly_unused=("text_encoder", "transformer"),  # what sees images
    published=PublishedModel(
        denoiser=Component(
            "diffusers.MotifVideoTransformer3DModel",
            {
                "num_attention_heads": 12,
                "num_layers": 12,
                "num_single_layers": 24,
                "num_decoder_layers": 8,
                "text_embed_dim": _TEXT_WIDTH,
                "image_embed_dim": _IMAGE_WIDTH,
                "enable_text_cross_attention_dual": True,
            },
        ),
        vae=WAN_21_MODEL.vae,
        text_encoders=((T5_GEMMA_2_4B, _NUM_TOKENS),),
        text={"prompt_embeds": (_NUM_TOKENS, _TEXT_WIDTH), "prompt_attention_mask": (_NUM_TOKENS,)},
        image_features=(_NUM_IMAGE_TOKENS, _IMAGE_WIDTH),
        side=960,
    ),
    remarks=f"""One model for text and for images. Where a clip is given its first frame (`data.image_to_video`), the
    denoiser sees 4096 tokens of it beside the text, which take 9 MB in the cache in bfloat16. Saved without the
    component that sets its guidance: in diffusers, set `pipe.guider` to a `ClassifierFreeGuidance` with the scale of
    your choice. {LOADED_BY_MODEL}""",
)
