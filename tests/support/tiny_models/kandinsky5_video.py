from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.kandinsky5_image import save_tiny_kandinsky5
from tests.support.tiny_models.parts import qwen_tokenizer


def make_tiny_kandinsky5_video(path: str | Path) -> Path:
    """Save a tiny Kandinsky 5 pipeline for videos below `path` and return the path; see that for images."""
    return save_tiny_kandinsky5_video(path, "Kandinsky5T2VPipeline")


def save_tiny_kandinsky5_video(path: str | Path, pipeline: str) -> Path:
    from diffusers import AutoencoderKLHunyuanVideo

    vae = AutoencoderKLHunyuanVideo(
        latent_channels=4, block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=4
    )
    tokenizer = qwen_tokenizer()
    # words of the instruction as one token, or too little of a prompt would be left
    words = "describe how the camera moves shakes zoom and view angle whether follows objects video visual is of some"
    tokenizer.add_tokens([f" {word}" for word in words.split()])
    return save_tiny_kandinsky5(path, pipeline, vae, tokenizer, visual_cond=True)
