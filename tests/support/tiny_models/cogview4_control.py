from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.cogview4 import make_tiny_cogview4


def make_tiny_cogview4_control(path: str | Path) -> Path:
    """Save a tiny CogView4 Control pipeline below `path` and return the path: the control image in 4 more channels."""
    return make_tiny_cogview4(path, "CogView4ControlPipeline", in_channels=8)
