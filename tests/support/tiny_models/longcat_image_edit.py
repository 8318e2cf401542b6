from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.longcat_image import save_tiny_longcat
from tests.support.tiny_models.parts import VISION_TOKENS, qwen_processor, qwen_tokenizer


def make_tiny_longcat_image_edit(path: str | Path) -> Path:
    """Save a tiny LongCat-Image-Edit pipeline below `path` and return the path."""
    from transformers import Qwen2VLProcessor

    tokenizer = qwen_tokenizer(VISION_TOKENS)
    processor = qwen_processor(tokenizer, Qwen2VLProcessor, patch_size=14, max_pixels=56 * 84)
    return save_tiny_longcat(path, "LongCatImageEditPipeline", tokenizer, processor)
