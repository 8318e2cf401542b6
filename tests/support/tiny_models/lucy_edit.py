from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import WAN_22_VAE
from tests.support.tiny_models.wan21 import save_tiny_wan


def make_tiny_lucy_edit(path: str | Path) -> Path:
    """Save a tiny Lucy-Edit pipeline below `path` and return the path: the source clip in as many further channels."""
    return save_tiny_wan(
        path, channels=48, vae=WAN_22_VAE, further_channels=48, pipeline="LucyEditPipeline", expand_timesteps=True
    )
