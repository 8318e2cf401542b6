from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, randomize_and_save, t5_tokenizer, tiny_t5, tiny_vae


def make_tiny_pixart_sigma(path: str | Path) -> Path:
    """Save a tiny PixArt-Sigma pipeline below `path` and return the path. Half of its output is the variance."""
    import torch
    from diffusers import DPMSolverMultistepScheduler, PixArtSigmaPipeline, PixArtTransformer2DModel

    torch.manual_seed(SEED)
    tokenizer = t5_tokenizer()
    transformer = PixArtTransformer2DModel(
        sample_size=32,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        num_attention_heads=4,
        attention_head_dim=8,
        cross_attention_dim=32,
        caption_channels=32,
    )
    pipeline = PixArtSigmaPipeline(
        transformer=transformer,
        vae=tiny_vae(scaling_factor=0.13025),
        scheduler=DPMSolverMultistepScheduler(beta_start=0.0001, beta_end=0.02, beta_schedule="linear"),
        text_encoder=tiny_t5(tokenizer, width=32),
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipeline, path)
