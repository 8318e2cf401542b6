"""HunyuanVideo 1.5 from an image to video: the first frame alone in further channels, and as SigLIP sees it.

Tencent 2025, arXiv 2511.18870. The pipeline takes no size but chooses one by the image; here it keeps the image's own.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modules.families.conditions import FirstFrame
from modules.families.Family import DenoiserCall
from modules.families.hunyuan_video15 import HUNYUAN_VIDEO_15, text_inputs
from modules.families.latents import encode_pixels

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

_NUM_IMAGE_TOKENS, _IMAGE_WIDTH = 729, 1152


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    latents = call.latents
    image, mask = torch.zeros_like(latents), torch.zeros_like(latents[:, :1])
    image[:, :, :1] = call.given["first_frame"]
    mask[:, :, 0] = 1
    return {
        **text_inputs(call),
        "hidden_states": torch.cat([latents, image, mask], 1),
        "image_embeds": call.given["image_features"],
    }


def _image_features(pipe: Any, images: list[Image]) -> Tensor:
    encoder = pipe.image_encoder
    return pipe.encode_image(images[0], 1, encoder.device, encoder.dtype)[0]


def _call_attributes(pipe: Any, width: int | None, height: int | None, guidance: float) -> Mapping[str, Any]:
    processor = copy.copy(pipe.video_processor)
    align = HUNYUAN_VIDEO_15.align
    processor.calculate_default_height_width = lambda height, width, target_size: (
        height // align * align,
        width // align * align,
    )
    return {**HUNYUAN_VIDEO_15.call_attributes(pipe, width, height, guidance), "video_processor": processor}


_PUBLISHED = HUNYUAN_VIDEO_15.published
assert _PUBLISHED is not None

HUNYUAN_VIDEO_15_I2V = replace(
    HUNYUAN_VIDEO_15,
    name="hunyuan_video15_i2v",
    label="HunyuanVideo 1.5 I2V",
    pipeline="HunyuanVideo15ImageToVideoPipeline",
    conditions=(
        FirstFrame(
            "HunyuanVideo15ImageToVideoPipeline",
            needed=True,
            encode=encode_pixels,
            components=("image_encoder", "feature_extractor"),
            features=_image_features,
        ),
    ),
    inputs=_inputs,
    call_attributes=_call_attributes,
    typical_bytes=HUNYUAN_VIDEO_15.typical_bytes + 1.7e9,
    published=replace(_PUBLISHED, image_features=(_NUM_IMAGE_TOKENS, _IMAGE_WIDTH)),
)
