"""Kandinsky 5 from an image to video: the text-to-video model with the first frame in place of the first latent one.

Kandinsky Lab 2025, arXiv 2511.14993. The VAE encodes that frame alone; the last channel of the input marks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modules.families.conditions import FirstFrame
from modules.families.Family import DenoiserCall
from modules.families.kandinsky5_video import KANDINSKY5_VIDEO, video_inputs
from modules.families.latents import encode_pixels

if TYPE_CHECKING:
    from torch import Tensor

_NUM_EVENED = 4  # latent frames at the start, of which the pipeline fits mean and deviation to those of the next ones


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    inputs = video_inputs(call)
    first = call.given["first_frame"].movedim(1, -1)
    latents = inputs["hidden_states"].clone()  # [B, F, H, W, channels, then as many zeros and a mark]
    latents[:, :1, ..., : first.shape[-1]] = first
    if call.denoiser.config.visual_cond:
        latents[:, 0, ..., -1] = 1
    return {**inputs, "hidden_states": latents}


def _call_attributes(pipe: Any, width: int | None, height: int | None, guidance: float) -> Mapping[str, Any]:
    """Corrects a fault of diffusers 0.42: a clip that ends before those next ones becomes NaN."""
    even = pipe.normalize_first_frame

    def even_long(latents_BFHWC: Tensor) -> Tensor:
        return even(latents_BFHWC) if latents_BFHWC.shape[1] > _NUM_EVENED else latents_BFHWC

    return {"normalize_first_frame": even_long}


KANDINSKY5_I2V = replace(
    KANDINSKY5_VIDEO,
    name="kandinsky5_i2v",
    label="Kandinsky 5 I2V",
    pipeline="Kandinsky5I2VPipeline",
    conditions=(FirstFrame("Kandinsky5I2VPipeline", needed=True, clean=True, encode=encode_pixels),),
    inputs=_inputs,
    call_attributes=_call_attributes,
)
