"""A source clip as further tokens behind those of a clip, as LTX-2's in-context LoRAs see it: without noise, and at the
same positions.

Source: diffusers, pipelines/ltx2/pipeline_ltx2_ic_lora.py; Lightricks/LTX-2, packages/ltx-trainer, video_to_video.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modules.families.conditions import SourceClip

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from modules.families.Family import DenoiserCall


def _arguments(frames: list[Image]) -> dict[str, Any]:
    from diffusers.pipelines.ltx2.pipeline_ltx2_ic_lora import LTX2ReferenceCondition

    return {"reference_conditions": [LTX2ReferenceCondition(frames)]}


IN_CONTEXT = SourceClip(needed=False, pipeline="LTX2InContextPipeline", arguments=_arguments)


def video_inputs(call: DenoiserCall, fps: float) -> dict[str, Any]:
    """What the denoiser takes of the video, of which each latent cell is a token."""
    if "source_clip" not in call.given:
        is_given = "first_given" in call.given
        return {"hidden_states": call.latents, "timestep": call.token_timesteps(1) if is_given else call.timestep}
    import torch

    timesteps, source = call.token_timesteps(1), call.given["source_clip"].flatten(2).transpose(1, 2)
    positions = call.denoiser.rope.prepare_video_coords(len(source), *call.shape[2:], source.device, fps=fps)
    return {
        "hidden_states": torch.cat([call.latents, source], 1),
        "timestep": torch.cat([timesteps, torch.zeros_like(timesteps)], 1),
        "video_coords": torch.cat([positions, positions], 2),
    }


def of_clip(call: DenoiserCall, output: Tensor) -> Tensor:
    """The prediction for the clip itself."""
    return output[:, : call.latents.shape[1]]
