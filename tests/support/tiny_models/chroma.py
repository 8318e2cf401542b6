from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, randomize_and_save, t5_tokenizer, tiny_t5, tiny_vae


def make_tiny_chroma(path: str | Path) -> Path:
    """Save a tiny Chroma pipeline below `path` and return the path."""
    import torch
    from diffusers import ChromaPipeline, ChromaTransformer2DModel, FlowMatchEulerDiscreteScheduler

    torch.manual_seed(SEED)
    t5 = t5_tokenizer()
    transformer = ChromaTransformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        axes_dims_rope=(4, 4, 8),
        approximator_num_channels=16,
        approximator_hidden_dim=32,
        approximator_layers=1,
    )
    pipeline = ChromaPipeline(
        transformer=transformer,
        vae=tiny_vae(scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False),
        scheduler=FlowMatchEulerDiscreteScheduler(),
        text_encoder=tiny_t5(t5, width=32),
        tokenizer=t5,
    )
    return randomize_and_save(pipeline, path)
