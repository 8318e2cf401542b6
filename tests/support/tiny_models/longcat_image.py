from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, qwen_tokenizer, randomize_and_save, tiny_qwen_vl, tiny_vae


def make_tiny_longcat_image(path: str | Path) -> Path:
    """Save a tiny LongCat-Image pipeline below `path` and return the path."""
    # the processor rewrites prompts, which is never asked of it
    return save_tiny_longcat(path, "LongCatImagePipeline", qwen_tokenizer(), None)


def save_tiny_longcat(path: str | Path, pipeline_class: str, tokenizer, processor) -> Path:
    import diffusers
    import torch

    torch.manual_seed(SEED)
    transformer = diffusers.LongCatImageTransformer2DModel(
        in_channels=64,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        axes_dims_rope=(4, 4, 8),
    )
    vae = {"scaling_factor": 0.3611, "shift_factor": 0.1159, "use_quant_conv": False, "use_post_quant_conv": False}
    pipeline = getattr(diffusers, pipeline_class)(
        transformer=transformer,
        vae=tiny_vae(latent_channels=16, **vae),  # the pipeline takes 16 channels for granted
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        text_encoder=tiny_qwen_vl(tokenizer),
        tokenizer=tokenizer,
        text_processor=processor,
    )
    return randomize_and_save(pipeline, path)
