"""Wan 2.1 from images to video: the first frame in further channels, and as CLIP sees it in front of the text.

Wan et al. 2025, arXiv 2503.20314, section 5.1. The denoiser takes all but the last 512 tokens for those of the image.
The version for videos between two images, FLF2V, is given the last frame, too, and adds positions to CLIP's tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modules.config.families import DENOISER_CONFIG
from modules.config.TrainingTimesteps import TrainingTimesteps
from modules.families.conditions import FirstFrame
from modules.families.Family import DenoiserCall
from modules.families.PublishedModel import Component
from modules.families.wan21 import ATTENTION, WAN_21, WAN_21_MODEL
from modules.families.wan22 import inputs_with_first_frame

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

_NUM_IMAGE_TOKENS, _IMAGE_WIDTH = 257, 1280


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    return {**inputs_with_first_frame(call), "encoder_hidden_states_image": call.given["image_features"]}


def _inputs_with_last_frame(call: DenoiserCall) -> dict[str, Any]:
    one_by_one = call.given["image_features"].unflatten(1, (2, -1)).flatten(0, 1)  # as the denoiser takes them
    return {**inputs_with_first_frame(call), "encoder_hidden_states_image": one_by_one}


def _image_features(pipe: Any, images: list[Image]) -> Tensor:
    return pipe.encode_image(images).flatten(0, 1)


def _has_positions(index: Mapping[str, Any]) -> bool:
    return bool(index.get(DENOISER_CONFIG, {}).get("pos_embed_seq_len"))


I2V_CONFIG = {"in_channels": 36, "out_channels": 16, "image_dim": _IMAGE_WIDTH, "added_kv_proj_dim": 5120}

FIRST_FRAME = FirstFrame(
    "WanImageToVideoPipeline",
    needed=True,
    components=("image_encoder", "image_processor"),
    features=_image_features,
)
WAN_21_I2V = replace(
    WAN_21,
    name="wan21_i2v",
    label="Wan 2.1 I2V",
    pipeline="WanImageToVideoPipeline",
    accepts=lambda index: WAN_21.accepts(index) and not _has_positions(index),
    conditions=(FIRST_FRAME,),
    inputs=_inputs,
    lora_targets={"transformer": (*ATTENTION, "add_k_proj", "add_v_proj")},
    latent_bytes_per_pixel=2 * WAN_21.latent_bytes_per_pixel,
    typical_bytes=91e9,
    published=replace(
        WAN_21_MODEL,
        denoiser=Component("diffusers.WanTransformer3DModel", I2V_CONFIG),
        image_features=(_NUM_IMAGE_TOKENS, _IMAGE_WIDTH),
        side=720,
    ),
)

WAN_21_FLF2V = replace(
    WAN_21_I2V,
    name="wan21_flf2v",
    label="Wan 2.1 FLF2V",
    accepts=lambda index: WAN_21.accepts(index) and _has_positions(index),
    conditions=(replace(FIRST_FRAME, last="needed"),),
    # The scheduler's shift of 16 is for sampling. Its makers have published no training code; kohya-ss/musubi-tuner:
    # docs/wan.md trains all of Wan 2.1 with 3.
    training_timesteps=TrainingTimesteps(shift=3.0),
    inputs=_inputs_with_last_frame,
    published=replace(
        WAN_21_MODEL,
        denoiser=Component(
            "diffusers.WanTransformer3DModel", {**I2V_CONFIG, "pos_embed_seq_len": 2 * _NUM_IMAGE_TOKENS}
        ),
        image_features=(2 * _NUM_IMAGE_TOKENS, _IMAGE_WIDTH),
        side=720,
    ),
)
