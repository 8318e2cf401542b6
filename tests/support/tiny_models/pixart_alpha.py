from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, randomize_and_save, t5_tokenizer, tiny_t5, tiny_vae


def make_tiny_pixart_alpha(path: str | Path) -> Path:
    """Save a tiny PixArt-alpha pipeline below `path` and return the path. It takes sizes, as that for 1024 pixels."""
    import torch
    from diffusers import DPMSolverMultistepScheduler, PixArtAlphaPipeline, PixArtTransformer2DModel

    torch.manual_seed(SEED)
    tokenizer = t5_tokenizer()
    transformer = PixArtTransformer2DModel(
        sample_size=128,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        num_attention_heads=4,
        attention_head_dim=12,  # the size takes thirds of the width
        cross_attention_dim=48,
        caption_channels=32,
    )
    pipeline = PixArtAlphaPipeline(
        transformer=transformer,
        vae=tiny_vae(4, scaling_factor=0.18215),  # the sizes are of 8 pixels a cell
        scheduler=DPMSolverMultistepScheduler(beta_start=0.0001, beta_end=0.02, beta_schedule="linear"),
        text_encoder=tiny_t5(tokenizer, width=32),
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipeline, path)
