"""Wan 2.1 VACE: Wan 2.1 with blocks beside it, which see a video that controls the result, or what stays of it.

Jiang et al. 2025, arXiv 2503.07598. The pipeline gives the blocks the latents of the source clip twice, without what is
white in its mask and without what is black, and the mask itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from modules.families.conditions import SourceClip
from modules.families.Family import DenoiserCall
from modules.families.PublishedModel import Component, Variant
from modules.families.wan21 import WAN_21, WAN_21_1_3B, WAN_21_MODEL, WAN_NAMES, wan_inputs


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    # without a scale of the blocks' outputs, it is 1
    return {**wan_inputs(call), "control_hidden_states": call.given["source_clip"]}


_OF_BLOCKS = {f"vace_{ours}": f"vace_{theirs}" for ours, theirs in WAN_NAMES.names.items() if ours[:6] == "blocks"}
_NAMES = replace(
    WAN_NAMES,
    names={
        **WAN_NAMES.names,
        **_OF_BLOCKS,
        "vace_blocks.{}.proj_in": "vace_blocks.{}.before_proj",
        "vace_blocks.{}.proj_out": "vace_blocks.{}.after_proj",
    },
)
_CLASS = "diffusers.WanVACETransformer3DModel"  # of the 14B model, the larger of the two
_MODEL = replace(WAN_21_MODEL, denoiser=Component(_CLASS), side=640)

WAN_21_VACE = replace(
    WAN_21,
    name="wan21_vace",
    label="Wan 2.1 VACE",
    pipeline="WanVACEPipeline",
    accepts=lambda index: not index.get("boundary_ratio"),
    other_model=lambda index: "Wan 2.2 VACE-Fun" if index.get("boundary_ratio") else "",
    conditions=(SourceClip(masked=True),),
    inputs=_inputs,
    lora_blocks={"transformer": ("blocks", "vace_blocks")},
    layer_names={"transformer": _NAMES},
    takes_loras_of=WAN_21.name,
    typical_bytes=93e9,
    remarks="""It is given [a source clip, and a mask or none](video.md#masks-of-source-clips). Captions describe the
    result, not the edit. The presets train the blocks that see the source, as `denoiser.include_layers` says; without
    that, those of Wan 2.1 are trained, too. LoRAs of Wan 2.1 fit it. Reference images are not trained.""",
    published=_MODEL,
)

assert WAN_21_1_3B.published is not None
_1_3B = {**WAN_21_1_3B.published.denoiser.config, "vace_layers": tuple(range(0, 30, 2))}
WAN_21_VACE_1_3B = Variant(
    "wan21_vace_1_3b",
    "wan21_vace",
    "Wan 2.1 VACE 1.3B",
    "Wan-AI/Wan2.1-VACE-1.3B-diffusers",
    replace(_MODEL, denoiser=Component(_CLASS, _1_3B)),
    typical_bytes=32e9,
)
