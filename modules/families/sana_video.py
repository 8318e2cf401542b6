"""SANA-Video: Sana's linear transformer for clips, on the autoencoder of Wan 2.1, from text or an image.

Chen et al. 2025, arXiv 2509.24695; the instruction before each prompt is the one in diffusers' pipeline.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from modules.families.conditions import FirstFrame
from modules.families.Family import DenoiserCall
from modules.families.PublishedModel import Component
from modules.families.sana import GEMMA_2, SANA, TEXT
from modules.families.wan21 import WAN_21, WAN_21_MODEL

_PATCH_SIZE = 2
_INSTRUCTION = [
    "Given a user prompt, generate an 'Enhanced prompt' that provides detailed visual descriptions suitable for video "
    "generation. Evaluate the level of detail in the user prompt:",
    "- If the prompt is simple, focus on adding specifics about colors, shapes, sizes, textures, motion, and temporal "
    "relationships to create vivid and dynamic scenes.",
    "- If the prompt is already detailed, refine and enhance the existing details slightly without overcomplicating.",
    "Here are examples of how to transform or refine prompts:",
    "- User Prompt: A cat sleeping -> Enhanced: A small, fluffy white cat slowly settling into a curled position, "
    "peacefully falling asleep on a warm sunny windowsill, with gentle sunlight filtering through surrounding pots of "
    "blooming red flowers.",
    "- User Prompt: A busy city street -> Enhanced: A bustling city street scene at dusk, featuring glowing street "
    "lamps gradually lighting up, a diverse crowd of people in colorful clothing walking past, and a double-decker bus "
    "smoothly passing by towering glass skyscrapers.",
    "Please generate only the enhanced description for the prompt below and avoid including any additional commentary "
    "or evaluations:",
    "User Prompt: ",
]


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    return {
        "hidden_states": call.latents,
        "timestep": call.timestep if "first_given" not in call.given else call.token_timesteps(_PATCH_SIZE),
        "encoder_hidden_states": call.text["prompt_embeds"],
        "encoder_attention_mask": call.text["prompt_attention_mask"],
    }


_LATER_VAE = ("diffusers", "AutoencoderKLLTX2Video")  # of later versions

SANA_VIDEO = replace(
    SANA,
    name="sana_video",
    label="SANA-Video",
    pipeline="SanaVideoPipeline",
    conditions=(FirstFrame("SanaImageToVideoPipeline"),),
    accepts=lambda index: index.get("vae") not in (_LATER_VAE, [*_LATER_VAE]),
    text=replace(SANA.text, options={**SANA.text.options, "complex_human_instruction": _INSTRUCTION}),
    align=32,
    frame_step=WAN_21.frame_step,
    frames_argument="frames",
    codec=WAN_21.codec,
    inputs=_inputs,
    patch_size=_PATCH_SIZE,
    latent_bytes_per_pixel=WAN_21.latent_bytes_per_pixel,
    typical_bytes=18.5e9,
    further_classes={"vae": ("diffusers.AutoencoderDC",)},
    published=replace(
        WAN_21_MODEL,
        denoiser=Component("diffusers.SanaVideoTransformer3DModel"),
        text_encoders=(GEMMA_2,),
        text=TEXT,
    ),
)
