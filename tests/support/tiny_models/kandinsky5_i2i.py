from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.kandinsky5_image import save_tiny_kandinsky5
from tests.support.tiny_models.parts import VISION_TOKENS, qwen_processor, qwen_tokenizer, tiny_vae


def make_tiny_kandinsky5_i2i(path: str | Path) -> Path:
    """Save a tiny Kandinsky 5 pipeline from images to images below `path` and return the path; see that above."""
    from transformers import Qwen2VLProcessor

    vae = {"scaling_factor": 0.3611, "shift_factor": 0.1159, "use_quant_conv": False, "use_post_quant_conv": False}
    processor = qwen_processor(qwen_tokenizer(VISION_TOKENS), Qwen2VLProcessor, patch_size=14, max_pixels=56 * 84)
    return save_tiny_kandinsky5(path, "Kandinsky5I2IPipeline", tiny_vae(4, **vae), processor, visual_cond=True)
