from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.flux1 import make_tiny_flux1

PIXELS_PER_LATENT = 2  # the VAEs have two levels, so one halving; the real ones have 8


def make_tiny_flux1_fill(path: str | Path) -> Path:
    """Save a tiny FLUX.1 Fill pipeline below `path` and return the path."""
    of_mask = 4 * PIXELS_PER_LATENT**2
    return make_tiny_flux1(path, pipeline="FluxFillPipeline", in_channels=16 + 16 + of_mask)
