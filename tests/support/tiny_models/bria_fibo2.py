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


def make_tiny_bria_fibo2(path: str | Path) -> Path:
    """Save a tiny Bria FIBO 2 pipeline below `path` and return the path. It has all layers of text that are read."""
    import diffusers
    import torch
    from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer(VISION_TOKENS)
    transformer = diffusers.BriaFibo2Transformer2DModel(
        in_channels=4,
        dim=32,
        n_layers=6,
        n_refiner_layers=1,
        n_heads=2,
        cap_feat_dim=3 * 16,
        injection_layer_ids=(0, 1, 2, 4, 5),
        perceiver_num_layers=1,
        min_num_gist_tokens=4,
        max_num_gist_tokens=8,
        gist_step=2,
        gist_min_text_len=20,
        gist_max_text_len=60,
        axes_dims=(4, 6, 6),
        axes_lens=(64, 64, 64),
    )
    pipeline = diffusers.BriaFibo2Pipeline(
        transformer=transformer,
        vae=tiny_flux2_vae(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        text_encoder=Qwen3VLForConditionalGeneration(tiny_qwen3_vl_config(tokenizer, num_layers=36)),
        processor=qwen_processor(tokenizer, Qwen3VLProcessor, patch_size=16, max_pixels=256**2),
    )
    return randomize_and_save(pipeline, path)
