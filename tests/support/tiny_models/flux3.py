from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import (
    SEED,
    VISION_TOKENS,
    qwen_processor,
    qwen_tokenizer,
    randomize_and_save,
    tiny_flux2_vae,
    tiny_qwen3_vl_config,
)


def make_tiny_flux3(path: str | Path) -> Path:
    """Save a tiny FLUX.3 pipeline below `path`, as diffusers' modular pipelines are saved, and return the path."""
    import diffusers
    import torch
    from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer(VISION_TOKENS)
    pipeline = diffusers.Flux3AutoBlocks().init_pipeline()
    pipeline.update_components(
        text_encoder=Qwen3VLForConditionalGeneration(tiny_qwen3_vl_config(tokenizer, num_layers=33)),
        tokenizer=qwen_processor(tokenizer, Qwen3VLProcessor, patch_size=16, max_pixels=256**2),
        transformer=diffusers.Flux3Transformer2DModel(
            in_channels=16,
            cond_in_channels=16,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=8 * 16,
            timestep_channels=16,
            axes_dims_rope=(4, 4, 4, 4),
        ),
        vae=tiny_flux2_vae(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=6.93),
    )
    return randomize_and_save(pipeline, path)
