from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.cogvideox import save_tiny_cogvideox


def make_tiny_cogvideox_fun(path: str | Path) -> Path:
    """Save a tiny CogVideoX-Fun pipeline below `path` and return the path: 2B, the control clip in 4 more channels."""
    return save_tiny_cogvideox(path, is_5b=False, pipeline="CogVideoXFunControlPipeline", in_channels=8)
