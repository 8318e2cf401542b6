from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import save_tiny_qwen_edit


def make_tiny_qwen_image_edit(path: str | Path) -> Path:
    """Save a tiny Qwen-Image-Edit pipeline below `path` and return the path."""
    return save_tiny_qwen_edit(path, "QwenImageEditPipeline")


def make_tiny_qwen_image_edit_plus(path: str | Path) -> Path:
    """Save a tiny Qwen-Image-Edit 2511 pipeline below `path` and return the path."""
    return save_tiny_qwen_edit(path, "QwenImageEditPlusPipeline", zero_cond_t=True)
