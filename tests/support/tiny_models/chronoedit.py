from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.wan21 import save_tiny_wan


def make_tiny_chronoedit(path: str | Path) -> Path:
    """Save a tiny ChronoEdit pipeline below `path` and return the path."""
    return save_tiny_wan(
        path,
        further_channels=20,
        pipeline="ChronoEditPipeline",
        transformer="ChronoEditTransformer3DModel",
        seen={"image_dim": 16, "added_kv_proj_dim": 24},
    )
