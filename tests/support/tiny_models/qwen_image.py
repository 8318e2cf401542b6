from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, qwen_tokenizer, randomize_and_save, tiny_qwen_vae, tiny_qwen_vl


def make_tiny_qwen_image(path: str | Path) -> Path:
    """Save a tiny Qwen-Image pipeline below `path` and return the path."""
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, QwenImagePipeline, QwenImageTransformer2DModel

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer()
    transformer = QwenImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(8, 4, 4),
    )
    pipeline = QwenImagePipeline(
        transformer=transformer,
        vae=tiny_qwen_vae(),
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        text_encoder=tiny_qwen_vl(tokenizer),
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipeline, path)
