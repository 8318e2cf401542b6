"""SkyReels-V2 from text or an image to video: Wan 2.1's models, trained further on 24 frames per second.

Its diffusion forcing models are left out: they have a noise level for each frame, and another pipeline.
Chen et al. 2025, arXiv 2504.13074. Its timesteps are those of its scheduler's shift: nobody has published what it was
trained with, and its pipelines are sampled with a shift of 8 (text) or 5 (image), set by hand.
"""

from __future__ import annotations

from dataclasses import replace

from modules.families.PublishedModel import Component
from modules.families.wan21 import WAN_21, WAN_21_MODEL
from modules.families.wan21_i2v import FIRST_FRAME, I2V_CONFIG, WAN_21_I2V

_14B = {"num_attention_heads": 40, "ffn_dim": 13824, "num_layers": 40}

SKYREELS_V2 = replace(
    WAN_21,
    name="skyreels_v2",
    label="SkyReels-V2",
    pipeline="SkyReelsV2Pipeline",
    accepts=lambda index: True,
    fps=24.0,
    published=replace(
        WAN_21_MODEL,
        denoiser=Component("diffusers.SkyReelsV2Transformer3DModel", _14B),
        side=720,
    ),
)

_WAN_21_I2V_MODEL = WAN_21_I2V.published
assert _WAN_21_I2V_MODEL is not None

SKYREELS_V2_I2V = replace(
    WAN_21_I2V,
    name="skyreels_v2_i2v",
    label="SkyReels-V2 I2V",
    pipeline="SkyReelsV2ImageToVideoPipeline",
    accepts=lambda index: True,
    conditions=(replace(FIRST_FRAME, pipeline="SkyReelsV2ImageToVideoPipeline"),),
    fps=24.0,
    published=replace(
        _WAN_21_I2V_MODEL, denoiser=Component("diffusers.SkyReelsV2Transformer3DModel", {**_14B, **I2V_CONFIG})
    ),
)
