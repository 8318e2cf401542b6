"""CogVideoX-Fun Control: CogVideoX that follows poses, edges or depth in a clip, whose latents are further channels.

Alibaba PAI 2024. Its makers train it with diffusers' DDPMScheduler and sample with DDIMScheduler, which leave out the
shift of the noise schedule that CogVideoX 2B was trained with and that the folder's config still names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modules.families.cogvideox import COGVIDEOX, further_channels, inputs
from modules.families.conditions import SourceClip
from modules.families.Family import DenoiserCall
from modules.families.PublishedModel import Component

if TYPE_CHECKING:
    from torch import Tensor


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    control_BFCHW = call.given["source_clip"].transpose(1, 2)
    return {**inputs(call), "hidden_states": torch.cat([call.latents, control_BFCHW], 2)}


def _accepts(index: Mapping[str, Any]) -> bool:
    further, num_latents = further_channels(index)
    return index.get("_class_name") != COGVIDEOX.pipeline or further == num_latents


def _call_attributes(pipe: Any, width: int | None, height: int | None, guidance: float) -> Mapping[str, Any]:
    """Corrects a fault of diffusers 0.42: it encodes the clip in the dtype of the texts, whatever the VAE's is."""
    prepare = pipe.prepare_control_latents

    def prepare_in_dtype(mask: None, clip: Tensor) -> tuple[None, Tensor]:
        return None, prepare(None, clip.to(pipe.vae.dtype))[1].to(clip.dtype)

    return {"prepare_control_latents": prepare_in_dtype}


_PUBLISHED = COGVIDEOX.published
assert _PUBLISHED is not None

COGVIDEOX_FUN = replace(
    COGVIDEOX,
    name="cogvideox_fun",
    label="CogVideoX-Fun Control",
    pipeline="CogVideoXFunControlPipeline",
    other_pipelines=("CogVideoXPipeline",),  # which its makers' folders name
    accepts=_accepts,
    other_model=lambda index: "",
    conditions=(SourceClip(is_control=True),),
    inputs=_inputs,
    plain_noise_schedule=True,
    call_attributes=_call_attributes,
    takes_loras_of=COGVIDEOX.name,
    published=replace(
        _PUBLISHED,
        denoiser=Component(_PUBLISHED.denoiser.class_name, {**_PUBLISHED.denoiser.config, "in_channels": 32}),
    ),
    remarks="""Version 1.1, 2B and 5B: Pose, and Control, which follows edges, depth and lines, too. The control clips,
    in the folder of source clips, show what the model was made for; Chorus makes none, and doesn't augment their
    colors. The models for inpainting (InP) and version 1.0 are not trained. LoRAs of CogVideoX 2B or 5B fit the model
    of the same size, too.""",
)
