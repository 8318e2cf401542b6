from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, WAN_22_VAE, qwen_tokenizer, randomize_and_save, tiny_wan_vae


def make_tiny_bria_fibo(path: str | Path) -> Path:
    """Save a tiny Bria FIBO pipeline below `path` and return the path. It has more blocks than the encoder layers."""
    import torch
    from diffusers import (
        AutoencoderKLWan,
        BriaFiboPipeline,
        BriaFiboTransformer2DModel,
        FlowMatchEulerDiscreteScheduler,
    )
    from transformers import SmolLM3Config, SmolLM3ForCausalLM

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer()
    text_encoder = SmolLM3Config(
        vocab_size=128001,  # the pipeline encodes the empty prompt as the token 128000
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=tokenizer.pad_token_id,
    )
    transformer = BriaFiboTransformer2DModel(
        in_channels=48,
        num_layers=2,
        num_single_layers=3,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(4, 4, 8),
        text_encoder_dim=8,
    )
    pipeline = BriaFiboPipeline(
        transformer=transformer,
        vae=AutoencoderKLWan(**tiny_wan_vae(48), **WAN_22_VAE),
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        text_encoder=SmolLM3ForCausalLM(text_encoder),
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipeline, path)
