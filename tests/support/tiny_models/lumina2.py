from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, gemma_tokenizer, randomize_and_save, tiny_vae


def make_tiny_lumina2(path: str | Path) -> Path:
    """Save a tiny Lumina Image 2.0 pipeline below `path` and return the path."""
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, Lumina2Pipeline, Lumina2Transformer2DModel
    from transformers import Gemma2Config, Gemma2Model

    torch.manual_seed(SEED)
    tokenizer = gemma_tokenizer()
    text_encoder = Gemma2Config(
        vocab_size=len(tokenizer),
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=64,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="eager",
    )
    transformer = Lumina2Transformer2DModel(
        sample_size=4,
        in_channels=4,
        hidden_size=24,
        num_layers=1,
        num_refiner_layers=1,
        num_attention_heads=3,
        num_kv_heads=1,  # a third of the heads, as published: LoRA files of fused layers are split in that proportion
        multiple_of=16,
        axes_dim_rope=(4, 2, 2),
        axes_lens=(300, 64, 64),
        cap_feat_dim=8,
    )
    pipeline = Lumina2Pipeline(
        transformer=transformer,
        vae=tiny_vae(4, scaling_factor=0.3611, shift_factor=0.1159),  # the pipeline takes 8 pixels a cell for granted
        scheduler=FlowMatchEulerDiscreteScheduler(shift=6.0),
        text_encoder=Gemma2Model(text_encoder),
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipeline, path)
