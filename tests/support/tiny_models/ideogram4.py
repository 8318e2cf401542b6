from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import (
    SEED,
    qwen_tokenizer,
    randomize_and_save,
    tiny_flux2_vae,
    tiny_qwen3_vl_config,
)


def make_tiny_ideogram4(path: str | Path) -> Path:
    """Save a tiny Ideogram 4 pipeline below `path` and return the path."""
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, Ideogram4Pipeline, Ideogram4Transformer2DModel
    from transformers import Qwen3VLModel

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer()
    denoisers = [
        Ideogram4Transformer2DModel(
            in_channels=16,
            num_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            intermediate_size=32,
            adaln_dim=16,
            llm_features_dim=13 * 16,
            mrope_section=(4, 2, 2),
        )
        for _ in range(2)
    ]
    pipeline = Ideogram4Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=tiny_flux2_vae(),
        text_encoder=Qwen3VLModel(tiny_qwen3_vl_config(tokenizer, num_layers=36)),  # the last one is read, too
        tokenizer=tokenizer,
        transformer=denoisers[0],
        unconditional_transformer=denoisers[1],
    )
    return randomize_and_save(pipeline, path)
