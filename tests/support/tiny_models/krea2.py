from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import (
    SEED,
    qwen_tokenizer,
    randomize_and_save,
    tiny_qwen3_vl_config,
    tiny_qwen_vae,
)


def make_tiny_krea2(path: str | Path) -> Path:
    """Save a tiny Krea 2 pipeline below `path` and return the path."""
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, Krea2Pipeline, Krea2Transformer2DModel
    from transformers import Qwen3VLModel

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer()
    transformer = Krea2Transformer2DModel(
        in_channels=16,
        num_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        timestep_embed_dim=16,
        text_hidden_dim=16,
        num_text_layers=3,
        text_num_attention_heads=2,
        text_num_key_value_heads=2,
        text_intermediate_size=16,
        num_layerwise_text_blocks=1,
        num_refiner_text_blocks=1,
        axes_dims_rope=(4, 6, 6),
    )
    pipeline = Krea2Pipeline(
        transformer=transformer,
        vae=tiny_qwen_vae(),
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        text_encoder=Qwen3VLModel(tiny_qwen3_vl_config(tokenizer)),
        tokenizer=tokenizer,
        text_encoder_select_layers=(0, 1, 2),
    )
    return randomize_and_save(pipeline, path)
