"""Lucy-Edit: edits of videos, by Wan 2.2 TI2V-5B with the latents of the video before the edit in further channels.

Decart 2025, "Lucy Edit: Open-Weight Text-Guided Video Editing".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modules.families.conditions import SourceClip
from modules.families.Family import DenoiserCall
from modules.families.PublishedModel import Component
from modules.families.wan22 import WAN_22_5B

if TYPE_CHECKING:
    from torch import Tensor


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    return {**WAN_22_5B.inputs(call), "hidden_states": torch.cat([call.latents, call.given["source_clip"]], 1)}


def _call_attributes(pipe: Any, width: int | None, height: int | None, guidance: float) -> Mapping[str, Any]:
    """Corrects a fault of diffusers 0.42: it encodes the source in float32, whatever the VAE's weights are in."""
    prepare = pipe.prepare_latents

    def prepare_in_dtype(video: Tensor, *args: Any) -> Any:
        return prepare(video.to(pipe.vae.dtype), *args)

    return {"prepare_latents": prepare_in_dtype}


_PUBLISHED = WAN_22_5B.published
assert _PUBLISHED is not None

LUCY_EDIT = replace(
    WAN_22_5B,
    name="lucy_edit",
    label="Lucy-Edit",
    pipeline="LucyEditPipeline",
    accepts=lambda index: True,
    conditions=(SourceClip(),),
    inputs=_inputs,
    call_attributes=_call_attributes,
    takes_loras_of=WAN_22_5B.name,
    remarks="""Captions say what to change, as the model's prompts do: "Change the apron into a suit of armor ...",
    "Replace ...", "Add ...", "Turn the scene into ...". Its license excludes commercial use. LoRAs of Wan 2.2 TI2V-5B
    fit it, too.""",
    published=replace(
        _PUBLISHED,
        denoiser=Component("diffusers.WanTransformer3DModel", {**_PUBLISHED.denoiser.config, "in_channels": 96}),
    ),
)
