from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.kandinsky5_video import save_tiny_kandinsky5_video


def make_tiny_kandinsky5_i2v(path: str | Path) -> Path:
    """Save a tiny Kandinsky 5 pipeline from images to videos below `path` and return the path; see that for images."""
    return save_tiny_kandinsky5_video(path, "Kandinsky5I2VPipeline")
