from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import WAN_22_VAE
from tests.support.tiny_models.wan21 import save_tiny_wan


def make_tiny_wan22_5b(path: str | Path) -> Path:
    """Save a tiny Wan 2.2 TI2V-5B pipeline below `path` and return the path: 16 pixels a cell, timesteps by token."""
    return save_tiny_wan(path, channels=48, vae=WAN_22_VAE, expand_timesteps=True)


def make_tiny_wan22_a14b(path: str | Path, heads: int = 2) -> Path:
    """Save a tiny Wan 2.2 A14B pipeline below `path` and return the path: two experts, each with half of the steps."""
    return save_tiny_wan(path, experts=2, heads=heads, boundary_ratio=0.5)


def make_tiny_wan22_i2v_a14b(path: str | Path) -> Path:
    """Save a tiny Wan 2.2 I2V A14B pipeline below `path` and return the path: the first frame in 20 more channels."""
    return save_tiny_wan(path, experts=2, further_channels=20, pipeline="WanImageToVideoPipeline", boundary_ratio=0.5)
