from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.wan21 import save_tiny_wan


def make_tiny_wan21_i2v(path: str | Path) -> Path:
    """Save a tiny Wan 2.1 I2V pipeline below `path` and return the path: an image encoder sees the first frame, too."""
    return save_tiny_wan(
        path, further_channels=20, pipeline="WanImageToVideoPipeline", seen={"image_dim": 16, "added_kv_proj_dim": 24}
    )


def make_tiny_wan21_flf2v(path: str | Path) -> Path:
    """Save a tiny Wan 2.1 FLF2V pipeline below `path` and return the path: the image encoder sees two frames."""
    seen = {"image_dim": 16, "added_kv_proj_dim": 24, "pos_embed_seq_len": 10}  # 4 patches and one more of each
    return save_tiny_wan(path, further_channels=20, pipeline="WanImageToVideoPipeline", seen=seen)
