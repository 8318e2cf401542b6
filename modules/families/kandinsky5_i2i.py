"""Kandinsky 5 from image to image: the image model with a reference in further channels, which Qwen 2.5 VL sees, too.

Kandinsky Lab 2025, arXiv 2511.14993. The last channel of the input marks that a reference is given. The text encoder
sees it at half its size, which `encode_prompt` sees to.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from modules.families.conditions import References
from modules.families.Family import DenoiserCall
from modules.families.kandinsky5_image import KANDINSKY5_IMAGE
from modules.families.PublishedModel import CLIP_L, QWEN_2_5_VL, Component
from modules.families.reference_sizes import size_of_denoiser

_NUM_TOKENS = 128 + 512 * 512 // 28**2 + 4  # of a prompt, its image and the marks around them
_INSTRUCTION = 54  # tokens before each prompt, which are cut off


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    inputs, latents = KANDINSKY5_IMAGE.inputs(call), call.latents
    (reference,) = call.given["references"]
    seen = KANDINSKY5_IMAGE.pack(reference)
    return {**inputs, "hidden_states": torch.cat([latents, seen, torch.ones_like(latents[..., :1])], -1)}


_PUBLISHED = KANDINSKY5_IMAGE.published
assert _PUBLISHED is not None

KANDINSKY5_I2I = replace(
    KANDINSKY5_IMAGE,
    name="kandinsky5_i2i",
    label="Kandinsky 5 Image Edit",
    pipeline="Kandinsky5I2IPipeline",
    text=replace(
        KANDINSKY5_IMAGE.text,
        options={"max_sequence_length": 1024},
        trainable=False,  # they see images, which batches don't hold
        reference_size=size_of_denoiser,
    ),
    conditions=(References(needed=True, has_shape_of_image=True),),
    inputs=_inputs,
    can_train_vae=False,
    partly_unused=(),
    takes_loras_of="kandinsky5_image",
    caption_bytes=(_NUM_TOKENS * 3584 + 768) * 4,
    published=replace(  # of the Lite model
        _PUBLISHED,
        denoiser=Component(_PUBLISHED.denoiser.class_name, {**_PUBLISHED.denoiser.config, "visual_cond": True}),
        text_encoders=((QWEN_2_5_VL, _NUM_TOKENS + _INSTRUCTION), (CLIP_L, 77)),
        text={"prompt_embeds_qwen": (_NUM_TOKENS, 3584), "prompt_embeds_clip": (768,)},
    ),
    remarks="""The text encoder sees the reference at half the size of the image, and the transformer in the size and
    shape of the image, to which references of another shape are cropped. Captions, and the empty one for caption
    dropout, are cached for each image, at about 3 MB each in bfloat16 for images of a megapixel, and the text encoders
    can't be trained.""",
)
