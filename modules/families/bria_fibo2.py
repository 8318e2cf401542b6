"""Bria FIBO 2: a single-stream flow transformer on the latents of FLUX.2, whose blocks see layers of Qwen 3 VL.

Bria 2026: trained on long captions in JSON. Each group of three layers, normalized and side by side, is one input: one
is condensed to a few hundred tokens beside the image, the others are seen by a block each.
"""

from __future__ import annotations

import json
from typing import Any

from modules.families.Family import DenoiserCall, Family
from modules.families.patched_vae import patch_2x2, patched_codec, unpatch_2x2
from modules.families.PublishedModel import QWEN_3_VL_4B, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

_GROUPS, _WIDTH = 6, 3 * 2560  # of layers, and of the states of one
_NUM_TOKENS = 1000  # of a caption
# A caption with all keys and no values, with which it was trained for guidance
_EMPTY = (
    '{"short_description":"","objects":[],"background_setting":"","lighting":{},"aesthetics":{},'
    '"photographic_characteristics":{},"style_medium":"","context":"","artistic_style":""}'
)


def _rewrite(pipe: Any, prompt: str) -> str:
    """A caption in JSON as the model has learned it: compact, without empty values and scores."""
    caption, _ = pipe._parse_prompt(prompt)
    if isinstance(caption, str):
        return prompt
    return json.dumps(caption or {}, separators=(",", ":"), ensure_ascii=False)


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    return {
        "hidden_states": call.latents,
        "timestep": call.timestep / 1000,
        "encoder_hidden_states": call.text["prompt_embeds"],
    }


BRIA_FIBO_2 = Family(
    name="bria_fibo2",
    label="Bria FIBO 2",
    pipeline="BriaFibo2Pipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", None),
        encoders=("text_encoder",),
        tokenizers=("processor",),
        rewrite=_rewrite,
        empty_prompt=_EMPTY,
        collate="group",  # with a mask, the transformer would wait for the lengths of the texts
    ),
    objective="flow",
    align=16,
    codec=patched_codec(patch_2x2, unpatch_2x2),
    inputs=_inputs,
    pack=unpatch_2x2,
    unpack=lambda packed, shape: patch_2x2(packed),
    patch_size=1,
    call_options={"render_text_images": False},  # of text in the image, which training does not show the encoder
    can_train_vae=True,
    lora_targets={"transformer": ("to_q", "to_k", "to_v", "to_out.0")},
    lora_mlp={"transformer": tuple(f"{part}.w{number}" for part in ("feed_forward", "ffn") for number in (1, 2, 3))},
    lora_blocks={"transformer": ("layers", "noise_refiner", "perceiver.layers")},
    latent_bytes_per_pixel=128 * 4 / 16**2,
    caption_bytes=_NUM_TOKENS * _GROUPS * _WIDTH * 4,
    typical_bytes=50.5e9,
    partly_unused=("text_encoder",),  # its vision tower, the last layer and the language head
    published=PublishedModel(
        denoiser=Component("diffusers.BriaFibo2Transformer2DModel"),
        vae=Component("diffusers.AutoencoderKLFlux2"),
        text_encoders=((QWEN_3_VL_4B, _NUM_TOKENS),),
        text={"prompt_embeds": (_GROUPS, _NUM_TOKENS, _WIDTH)},
        side=1024,
    ),
    remarks="""Trained on long captions in JSON: write captions and prompts like them. They are compacted as the
    pipeline does it, and take 92 KB per token in the cache, in bfloat16. It is trained from text alone, not on edits,
    which the pipeline crops and guides in another way; samples are made with `render_text_images=False`, because the
    text encoder does not see images of `text_render` entries in training.""",
)
