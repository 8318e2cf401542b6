from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, instructed_gemma, randomize_and_save, tiny_wan_vae


def make_tiny_sana_video(path: str | Path) -> Path:
    """Save a tiny SANA-Video pipeline below `path` and return the path."""
    import torch
    from diffusers import (
        AutoencoderKLWan,
        FlowMatchEulerDiscreteScheduler,
        SanaVideoPipeline,
        SanaVideoTransformer3DModel,
    )

    from modules.families.sana_video import SANA_VIDEO

    torch.manual_seed(SEED)
    text_encoder, tokenizer = instructed_gemma(SANA_VIDEO)
    transformer = SanaVideoTransformer3DModel(
        in_channels=16,
        out_channels=16,
        num_attention_heads=2,
        attention_head_dim=12,
        num_layers=2,
        num_cross_attention_heads=2,
        cross_attention_head_dim=12,
        cross_attention_dim=24,
        caption_channels=8,
        sample_size=8,
        rope_max_seq_len=32,
    )
    pipeline = SanaVideoPipeline(
        transformer=transformer,
        vae=AutoencoderKLWan(**tiny_wan_vae(16)),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=8.0),
        text_encoder=text_encoder,
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipeline, path)
