from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.flux1 import make_tiny_flux1


def make_tiny_flux1_control(path: str | Path) -> Path:
    """Save a tiny FLUX.1 Canny pipeline below `path` and return the path: the control image in 16 more channels."""
    return make_tiny_flux1(path, pipeline="FluxControlPipeline", in_channels=16 + 16)
