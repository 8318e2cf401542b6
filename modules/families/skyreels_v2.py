"""SkyReels-V2 from text to video: Wan 2.1's transformer, VAE and text encoder, trained further on 24 frames per second.

Its diffusion forcing models are left out: they have a noise level for each frame, and another pipeline.
Chen et al. 2025, arXiv 2504.13074.
"""

from __future__ import annotations

from dataclasses import replace

from modules.families.PublishedModel import Component
from modules.families.wan21 import WAN_21, WAN_21_MODEL

SKYREELS_V2 = replace(
    WAN_21,
    name="skyreels_v2",
    label="SkyReels-V2",
    pipeline="SkyReelsV2Pipeline",
    accepts=lambda index: True,
    fps=24.0,
    published=replace(
        WAN_21_MODEL,
        denoiser=Component(
            "diffusers.SkyReelsV2Transformer3DModel",
            {"num_attention_heads": 40, "ffn_dim": 13824, "num_layers": 40},  # 14B
        ),
        side=720,
    ),
)
