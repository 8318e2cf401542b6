from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, randomize_and_save, t5_tokenizer, tiny_umt5, tiny_wan_vae


def make_tiny_helios(path: str | Path) -> Path:
    """Save a tiny Helios pipeline below `path` and return the path."""
    import torch
    from diffusers import AutoencoderKLWan, HeliosPipeline, HeliosScheduler, HeliosTransformer3DModel

    torch.manual_seed(SEED)
    tokenizer = t5_tokenizer()
    transformer = HeliosTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        text_dim=32,
        freq_dim=32,
        ffn_dim=32,
        num_layers=2,
        rope_dim=(4, 4, 4),
    )
    pipe = HeliosPipeline(
        transformer=transformer,
        vae=AutoencoderKLWan(**tiny_wan_vae(16)),
        scheduler=HeliosScheduler(stages=1, use_dynamic_shifting=True),
        text_encoder=tiny_umt5(tokenizer, width=32),
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipe, path)
