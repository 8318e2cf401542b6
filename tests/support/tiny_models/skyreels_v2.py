from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.wan21 import save_tiny_wan


def make_tiny_skyreels_v2(path: str | Path) -> Path:
    """Save a tiny SkyReels-V2 pipeline below `path` and return the path."""
    return save_tiny_wan(path, pipeline="SkyReelsV2Pipeline", transformer="SkyReelsV2Transformer3DModel")


def make_tiny_skyreels_v2_i2v(path: str | Path) -> Path:
    """Save a tiny SkyReels-V2 I2V pipeline below `path` and return the path: as Wan 2.1 I2V."""
    return save_tiny_wan(
        path,
        further_channels=20,
        pipeline="SkyReelsV2ImageToVideoPipeline",
        transformer="SkyReelsV2Transformer3DModel",
        seen={"image_dim": 16, "added_kv_proj_dim": 24},
    )
