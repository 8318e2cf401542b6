"""HunyuanVideo from an image to video: the first frame in place of the first latent one, and as LLaVA sees it.

Kong et al. 2024, arXiv 2412.03603. The text encoder reads the caption behind the image; a fourth of its tokens for the
image stand in front of those of the text. Of the two releases, this is the second (`token_replace`), whose blocks
modulate the tokens of the first frame by a timestep of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from modules.config.families import DENOISER_CONFIG
from modules.families.conditions import FirstFrame
from modules.families.Family import DenoiserCall
from modules.families.hunyuan_video import HUNYUAN_VIDEO, video_inputs
from modules.families.latents import encode_pixels
from modules.families.PublishedModel import CLIP_L, Component

_PIPELINE = "HunyuanVideoImageToVideoPipeline"
_EVERY = 4  # of the tokens for the image, the denoiser sees each that many
_NUM_IMAGE_TOKENS = 24 * 24
_NUM_TOKENS = _NUM_IMAGE_TOKENS // _EVERY + 252  # without four of the 256, those of the answer that would follow
_INSTRUCTION = 103
_CONDITION_TYPE = "token_replace"


def _first_release(index: Mapping[str, Any]) -> str:
    kind = index.get(DENOISER_CONFIG, {}).get("image_condition_type", _CONDITION_TYPE)
    return "" if kind == _CONDITION_TYPE else "HunyuanVideo I2V 33ch"


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    latents = torch.cat([call.given["first_frame"], call.latents[:, :, 1:]], 2)
    return {**video_inputs(call), "hidden_states": latents}


_PUBLISHED = HUNYUAN_VIDEO.published
assert _PUBLISHED is not None

HUNYUAN_VIDEO_I2V = replace(
    HUNYUAN_VIDEO,
    name="hunyuan_video_i2v",
    label="HunyuanVideo I2V",
    pipeline=_PIPELINE,
    other_model=_first_release,
    text=replace(
        HUNYUAN_VIDEO.text,
        tokenizers=("tokenizer", "tokenizer_2", "image_processor"),
        trainable=False,  # they see images, which batches don't hold
        options={**HUNYUAN_VIDEO.text.options, "image_embed_interleave": _EVERY},
        sees_first_frame=True,
    ),
    conditions=(FirstFrame(_PIPELINE, needed=True, clean=True, encode=encode_pixels),),
    inputs=_inputs,
    partly_unused=(),
    takes_loras_of="hunyuan_video",
    caption_bytes=_NUM_TOKENS * (4096 * 4 + 8) + 768 * 4,
    typical_bytes=HUNYUAN_VIDEO.typical_bytes + 1.3e9,
    published=replace(
        _PUBLISHED,
        denoiser=Component(_PUBLISHED.denoiser.class_name, {"image_condition_type": _CONDITION_TYPE}),
        text_encoders=(
            (
                Component(
                    "transformers.LlavaForConditionalGeneration",
                    {
                        "text_config": {
                            "model_type": "llama",
                            "vocab_size": 128320,
                            "intermediate_size": 14336,
                            "num_key_value_heads": 8,
                        }
                    },
                    "LlavaConfig",
                ),
                _INSTRUCTION + 256 + _NUM_IMAGE_TOKENS - 1,
            ),
            (CLIP_L, 77),
        ),
        text={
            "prompt_embeds": (_NUM_TOKENS, 4096),
            "pooled_prompt_embeds": (768,),
            "prompt_attention_mask": (_NUM_TOKENS,),
        },
    ),
    remarks="""The second release, whose `image_condition_type` is `token_replace`. The text encoder, LLaVA, sees the
    first frame, too: captions, and the empty one for caption dropout, are cached for each clip, at 3 MB each in
    bfloat16, and it can't be trained. The first release (`latent_concat`, 33 channels) is not a family: its pipeline
    makes four frames more than it returns, which it cuts off at the start.""",
)
