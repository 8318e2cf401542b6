from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.ltx_video import make_tiny_ltx_video


def make_tiny_ltx_video095(path: str | Path) -> Path:
    """Save a tiny LTX-Video 0.9.5 pipeline below `path` and return the path."""
    return make_tiny_ltx_video(path, "LTXConditionPipeline")
