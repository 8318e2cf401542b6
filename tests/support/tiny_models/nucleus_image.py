from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import (
    SEED,
    VISION_TOKENS,
    qwen_processor,
    qwen_tokenizer,
    randomize_and_save,
    tiny_qwen3_vl_config,
    tiny_qwen_vae,
)


def make_tiny_nucleus_image(path: str | Path) -> Path:
    """Save a tiny Nucleus-Image pipeline below `path` and return the path."""
    import diffusers
    import torch
    from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer(VISION_TOKENS)
    transformer = diffusers.NucleusMoEImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=4,
        attention_head_dim=16,
        num_attention_heads=2,
        num_key_value_heads=1,
        joint_attention_dim=16,
        axes_dims_rope=(4, 6, 6),
        mlp_ratio=8.0,
        dense_moe_strategy="leave_first_block_dense",
        num_experts=4,
        moe_intermediate_dim=16,
        capacity_factors=[0.0, 2.0, 2.0, 1.0],
    )
    with torch.no_grad():
        for block in list(transformer.transformer_blocks)[1:]:
            for parameter in block.img_mlp.experts.parameters():
                parameter.normal_(0, 0.1)  # diffusers leaves them as the memory was
    pipeline = diffusers.NucleusMoEImagePipeline(
        transformer=transformer,
        vae=tiny_qwen_vae(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        text_encoder=Qwen3VLForConditionalGeneration(tiny_qwen3_vl_config(tokenizer, num_layers=8)),
        processor=qwen_processor(tokenizer, Qwen3VLProcessor, patch_size=16, max_pixels=256**2),
    )
    return randomize_and_save(pipeline, path)
