from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.sd15 import make_tiny_sd15


def make_tiny_sd15_inpaint(path: str | Path) -> Path:
    """Save a tiny Stable Diffusion pipeline for inpainting below `path` and return the path."""
    return make_tiny_sd15(path, in_channels=9, pipeline="StableDiffusionInpaintPipeline")
