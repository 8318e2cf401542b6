"""Helios: Wan 2.1 14B, trained further to make videos section by section, each from what precedes it.

Yuan et al. 2026, arXiv 2603.04379. Helios-Base, which its makers train in their first stage; the others denoise in
three resolutions one after the other. Beside the noised section, the denoiser sees the first latent frame of the video
and the one before the section as they are, two before these in half and sixteen before these in a quarter of the
resolution, all with timestep 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from modules.config.TrainingTimesteps import TrainingTimesteps
from modules.families.conditions import SectionHistory
from modules.families.Family import DenoiserCall
from modules.families.PublishedModel import Component
from modules.families.sectioned_vae import sectioned
from modules.families.wan21 import WAN_21, WAN_21_MODEL, WAN_NAMES, wan_inputs

_FRAMES, _LATENTS = 33, 9  # of a section
_FAR, _MIDDLE, _NEAR = 16, 2, 1  # latent frames of the history, from the oldest


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    if "history" not in call.given:  # a latent frame alone, whose activations are counted
        return wan_inputs(call)
    first, far, middle, near = call.given["history"].split([1, _FAR, _MIDDLE, _NEAR], 2)
    places = torch.arange(1 + _FAR + _MIDDLE + _NEAR + call.shape[2], device=call.latents.device)[None]
    of_first, of_far, of_middle, of_near, own = places.split([1, _FAR, _MIDDLE, _NEAR, call.shape[2]], 1)
    return {
        **wan_inputs(call),
        "indices_hidden_states": own,
        "indices_latents_history_short": torch.cat([of_first, of_near], 1),
        "indices_latents_history_mid": of_middle,
        "indices_latents_history_long": of_far,
        "latents_history_short": torch.cat([first, near], 2),
        "latents_history_mid": middle,
        "latents_history_long": far,
    }


def _other_model(index: Mapping[str, Any]) -> str:
    if index.get("_class_name") != "HeliosPyramidPipeline":
        return ""
    return "Helios-Distilled" if index.get("is_distilled") else "Helios-Mid"


HELIOS = replace(
    WAN_21,
    name="helios",
    label="Helios",
    pipeline="HeliosPipeline",
    other_pipelines=("HeliosPyramidPipeline",),  # of other models, named so that they are known
    accepts=lambda index: True,
    other_model=_other_model,
    conditions=(
        # Source of the shares: PKU-YuanGroup/Helios, scripts/training/configs/stage_1_post.yaml
        SectionHistory(
            section=_FRAMES,
            latents=_LATENTS,
            before=_FAR + _MIDDLE + _NEAR,
            # the tokens of two whole frames, of a quarter of one, and of a sixteenth of each of four
            as_latents=1 + _NEAR + _MIDDLE / 8 + _FAR / 64,
            absent=0.4,
            shortened=0.4,
            clean=0.1,
            noise=1 / 3,
        ),
    ),
    codec=sectioned(WAN_21.codec, _FRAMES, _LATENTS),
    inputs=_inputs,
    frame_step=_FRAMES,
    frame_rest=0,
    frame_latents=(_LATENTS, 0),
    frames_per_token=4,
    fps=24.0,
    # without the shift of its scheduler: `use_dynamic_shifting` is off in that stage, too
    training_timesteps=TrainingTimesteps(),
    layer_names={},  # ComfyUI has no Helios
    original_names=WAN_NAMES,
    published=replace(WAN_21_MODEL, denoiser=Component("diffusers.HeliosTransformer3DModel"), side=496),
    distilled={"Helios-Mid, Helios-Distilled": "Helios-Base; the others can't be trained"},
    remarks="""[Trained section by section](video.md#section-by-section), from clips of at least 33 frames, and not from
    images. A step takes one section of each clip, so that longer clips cost no more memory. Its pipeline makes whole
    sections, of which it leaves out up to three frames at the end. Samples start from text; a LoRA also works where the
    pipeline starts from an image or a video. Helios-Mid and Helios-Distilled are refused.""",
)
