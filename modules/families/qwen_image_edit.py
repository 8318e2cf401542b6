"""Qwen-Image-Edit: Qwen-Image with reference images, which the transformer and the text encoder see.

Wu et al. 2025, arXiv 2508.02324, section 4.2. The first release takes one reference; the later ones (2509, 2511) take
several, which their text encoder sees smaller. In 2511 the transformer takes references for images without noise, as
its config says.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from modules.families.conditions import References
from modules.families.PublishedModel import QWEN_2_5_VL
from modules.families.qwen_image import QWEN_IMAGE
from modules.families.reference_sizes import size_of_area

_AREA = 1024 * 1024  # of a reference, in pixels
_TEXT_AREA = 384 * 384
_PIXELS_PER_TOKEN = 28 * 28  # of what the text encoder sees
_PROMPT, _INSTRUCTION = 128, 98  # tokens of a prompt and of the text around it, most of which is cut off

_PUBLISHED = QWEN_IMAGE.published
assert _PUBLISHED is not None
_NUM_TOKENS = _PROMPT + _AREA // _PIXELS_PER_TOKEN
_NUM_TOKENS_PLUS = _PROMPT + _TEXT_AREA // _PIXELS_PER_TOKEN

QWEN_IMAGE_EDIT = replace(
    QWEN_IMAGE,
    name="qwen_image_edit",
    label="Qwen-Image-Edit",
    pipeline="QwenImageEditPipeline",
    text=replace(
        QWEN_IMAGE.text,
        tokenizers=("tokenizer", "processor"),
        trainable=False,  # they see images, which batches don't hold
        reference_size=partial(size_of_area, _AREA),
    ),
    conditions=(References(needed=True, size=partial(size_of_area, _AREA)),),
    output=lambda call, output: output[:, : call.latents.shape[1]],
    caption_bytes=_NUM_TOKENS * 3584 * 4,
    partly_unused=("transformer",),  # the last block's text output
    published=replace(
        _PUBLISHED,
        text_encoders=((QWEN_2_5_VL, _NUM_TOKENS + _INSTRUCTION),),
        text={"prompt_embeds": (_NUM_TOKENS, 3584)},
    ),
    remarks="""The text encoder sees the reference, too. Captions, and the empty one for caption dropout, are cached for
    each image, at about 10 MB each in bfloat16, and it can't be trained. Like the transformer, it is always shown a
    megapixel of the reference, as in diffusers' pipeline.""",
)

QWEN_IMAGE_EDIT_PLUS = replace(
    QWEN_IMAGE_EDIT,
    name="qwen_image_edit_plus",
    label="Qwen-Image-Edit 2509, 2511",
    pipeline="QwenImageEditPlusPipeline",
    text=replace(QWEN_IMAGE_EDIT.text, reference_size=partial(size_of_area, _TEXT_AREA)),
    # as many as the authors recommend at most
    conditions=(References(3, needed=True, size=partial(size_of_area, _AREA)),),
    caption_bytes=_NUM_TOKENS_PLUS * 3584 * 4,
    published=replace(
        _PUBLISHED,
        text_encoders=((QWEN_2_5_VL, _NUM_TOKENS_PLUS + _INSTRUCTION),),
        text={"prompt_embeds": (_NUM_TOKENS_PLUS, 3584)},
    ),
    remarks="""The text encoder sees the references, too. Captions, and the empty one for caption dropout, are cached
    for each image, at about 2 MB each in bfloat16 and 1.3 MB for each further reference, and it can't be trained. It is
    always shown 384 x 384 pixels of a reference, and the transformer a megapixel, as in diffusers' pipeline.""",
)
