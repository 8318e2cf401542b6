from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import (
    SEED,
    VISION_TOKENS,
    qwen_processor,
    qwen_tokenizer,
    randomize_and_save,
    tiny_qwen3_vl_config,
)


def make_tiny_qwen_image21(path: str | Path) -> Path:
    """Save a tiny Qwen-Image 2.1 pipeline below `path` and return the path."""
    import diffusers
    import torch
    from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer(VISION_TOKENS)
    vae = diffusers.AutoencoderKLQwenImage21(
        base_dim=4,
        decoder_base_dim=4,
        z_dim=4,
        dim_mult=[1, 1, 1, 1, 1],
        num_res_blocks=1,
        # unlike each other: mixed up channels would show
        latents_mean=[0.1, -0.2, 0.3, 0.0],
        latents_std=[1.5, 2.0, 0.5, 1.0],
    )
    transformer = diffusers.QwenImage21Transformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        context_in_dim=16,
        mlp_ratio=2,
        axes_dims_rope=(4, 6, 6),
    )
    pipeline = diffusers.QwenImage21Pipeline(
        transformer=transformer,
        vae=vae,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        text_encoder=Qwen3VLForConditionalGeneration(tiny_qwen3_vl_config(tokenizer)),
        processor=qwen_processor(tokenizer, Qwen3VLProcessor, patch_size=16, max_pixels=256**2),
    )
    return randomize_and_save(pipeline, path)
