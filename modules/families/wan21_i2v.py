"""Wan 2.1 from an image to video: the first frame in further channels, and as CLIP sees it in front of the text.

Wan et al. 2025, arXiv 2503.20314, section 5.1. The denoiser takes all but the last 512 tokens for those of the image.
The version that is given the last frame, too, adds positions to the tokens of both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modules.families.Family import DenoiserCall
from modules.families.PublishedModel import Component
from modules.families.wan21 import ATTENTION, WAN_21, WAN_21_MODEL
from modules.families.wan22 import inputs_with_first_frame

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

_NUM_IMAGE_TOKENS, _IMAGE_WIDTH = 257, 1280


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    return {**inputs_with_first_frame(call), "encoder_hidden_states_image": call.image_features}


def _image_features(pipe: Any, images: list[Image]) -> Tensor:
    return pipe.encode_image(images).flatten(0, 1)


WAN_21_I2V = replace(
    WAN_21,
    name="wan21_i2v",
    label="Wan 2.1 I2V",
    pipeline="WanImageToVideoPipeline",
    image_pipeline="WanImageToVideoPipeline",
    needs_first_frame=True,
    image_components=("image_encoder", "image_processor"),
    image_features=_image_features,
    inputs=_inputs,
    unsupported=lambda config: "Wan 2.1 FLF2V" if config.get("pos_embed_seq_len") else "",
    lora_targets={"transformer": (*ATTENTION, "add_k_proj", "add_v_proj")},
    latent_bytes_per_pixel=2 * WAN_21.latent_bytes_per_pixel,
    typical_bytes=91e9,
    published=replace(
        WAN_21_MODEL,
        denoiser=Component(
            "diffusers.WanTransformer3DModel",
            {"in_channels": 36, "out_channels": 16, "image_dim": _IMAGE_WIDTH, "added_kv_proj_dim": 5120},
        ),
        image_features=(_NUM_IMAGE_TOKENS, _IMAGE_WIDTH),
        side=720,
    ),
)
