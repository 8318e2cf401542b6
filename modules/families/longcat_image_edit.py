"""LongCat-Image-Edit: LongCat-Image with a reference image, which the text encoder sees at half its size.

Meituan 2025, arXiv 2512.07584. Reference and image share the coordinates of their positions, so that a reference should
have the size of the image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from modules.families.conditions import References
from modules.families.longcat_image import LONGCAT_IMAGE, NUM_TOKENS
from modules.families.lora_parts import LOADED_BY_MODEL
from modules.families.PublishedModel import QWEN_2_5_VL
from modules.families.reference_sizes import Size

if TYPE_CHECKING:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from PIL.Image import Image
    from torch import Tensor

_AREA = 1024 * 1024  # at least, in pixels, to which the pipeline scales references
_NUM_TOKENS = NUM_TOKENS + 512 * 512 // 28**2 + 2  # of every text with its image
_INSTRUCTION = 70  # about that many tokens around it, which are cut off


def _size_in_text(aspect: float) -> Size:
    width = math.sqrt(_AREA * aspect)
    return math.ceil(width / 16) * 8, math.ceil(width / aspect / 16) * 8


def _call_attributes(
    pipe: DiffusionPipeline, width: int | None, height: int | None, guidance: float
) -> Mapping[str, Any]:
    """The pipeline scales the reference to a megapixel and makes an image of that size; so both keep their own."""
    if not (width and height):
        return {}
    processor, prepare, unpack = pipe.image_processor, pipe.prepare_latents, pipe._unpack_latents

    def resize(image: Image, tall: int, wide: int) -> Image:
        """Only for the text encoder, which sees less than the area."""
        return image if tall * wide >= _AREA else processor.resize(image, tall, wide)

    def prepare_latents(
        image: Tensor, batch_size: int, channels: int, tall: int, wide: int, *others: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        latents, _, positions, _ = prepare(None, batch_size, channels, height, width, *others)
        _, reference, _, of_reference = prepare(image, batch_size, channels, *image.shape[-2:], *others)
        return latents, reference, positions, of_reference

    return {
        "image_processor": SimpleNamespace(
            resize=resize,
            preprocess=lambda image, tall, wide: processor.preprocess(image),
            postprocess=processor.postprocess,
        ),
        "prepare_latents": prepare_latents,
        "_unpack_latents": lambda latents, tall, wide, scale: unpack(latents, height, width, scale),
    }


assert LONGCAT_IMAGE.published is not None

LONGCAT_IMAGE_EDIT = replace(
    LONGCAT_IMAGE,
    name="longcat_image_edit",
    label="LongCat-Image-Edit",
    pipeline="LongCatImageEditPipeline",
    text=replace(
        LONGCAT_IMAGE.text,
        tokenizers=("tokenizer", "text_processor"),
        collate="group",  # the number of tokens depends on the shape of the image
        reference_size=_size_in_text,
    ),
    conditions=(References(needed=True),),
    output=lambda call, output: output[:, : call.latents.shape[1]],
    adapt=lambda denoiser: None,  # edits are made one at a time
    call_options={},
    call_attributes=_call_attributes,
    unused=(),
    read_when_built=("text_processor",),
    caption_bytes=_NUM_TOKENS * 3584 * 4,
    published=replace(
        LONGCAT_IMAGE.published,
        text_encoders=((QWEN_2_5_VL, _NUM_TOKENS + _INSTRUCTION),),
        text={"prompt_embeds": (_NUM_TOKENS, 3584)},
    ),
    remarks=f"""The text encoder sees the reference at about 512 x 512 pixels, the transformer in the size in which the
    image is trained. References should have the aspect ratio of their images, because the model takes equal positions
    in both for the same place. A caption takes 6 MB in the cache. In diffusers, images have the shape of their
    reference and about a megapixel; Chorus's samples have the size that is asked for, or that of the pipeline if none
    is. {LOADED_BY_MODEL}""",
)
