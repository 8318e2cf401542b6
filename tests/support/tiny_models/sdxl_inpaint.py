from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.sdxl import make_tiny_sdxl


def make_tiny_sdxl_inpaint(path: str | Path) -> Path:
    """Save a tiny Stable Diffusion XL pipeline for inpainting below `path` and return the path."""
    return make_tiny_sdxl(path, in_channels=9, pipeline="StableDiffusionXLInpaintPipeline")
