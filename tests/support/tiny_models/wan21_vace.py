from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.wan21 import save_tiny_wan


def make_tiny_wan21_vace(path: str | Path) -> Path:
    """Save a tiny Wan 2.1 VACE pipeline below `path` and return the path: one block beside the first of two."""
    return save_tiny_wan(
        path,
        pipeline="WanVACEPipeline",
        transformer="WanVACETransformer3DModel",
        seen={"vace_layers": [0], "vace_in_channels": 96},
    )
