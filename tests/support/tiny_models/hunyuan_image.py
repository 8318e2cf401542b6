from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, qwen_tokenizer, randomize_and_save, tiny_qwen_vl, tiny_t5


def make_tiny_hunyuan_image(path: str | Path) -> Path:
    """Save a tiny HunyuanImage 2.1 pipeline below `path` and return the path. Its autoencoder has 8 pixels a cell."""
    import torch
    from diffusers import (
        AdaptiveProjectedMixGuidance,
        AutoencoderKLHunyuanImage,
        FlowMatchEulerDiscreteScheduler,
        HunyuanImagePipeline,
        HunyuanImageTransformer2DModel,
    )
    from transformers import ByT5Tokenizer

    torch.manual_seed(SEED)
    tokenizer, letters = qwen_tokenizer(), ByT5Tokenizer()
    transformer = HunyuanImageTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=1,
        num_single_layers=1,
        num_refiner_layers=1,
        text_embed_dim=16,
        text_embed_2_dim=32,
        rope_axes_dim=(8, 8),
    )
    vae = AutoencoderKLHunyuanImage(
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        block_out_channels=(32, 32, 32, 32),
        layers_per_block=1,
        spatial_compression_ratio=8,
        sample_size=32,
        scaling_factor=0.75289,
    )
    pipeline = HunyuanImagePipeline(
        transformer=transformer,
        vae=vae,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=5.0),
        text_encoder=tiny_qwen_vl(tokenizer, num_layers=4),  # the last two are not used
        tokenizer=tokenizer,
        text_encoder_2=tiny_t5(letters, width=32),
        tokenizer_2=letters,
        guider=AdaptiveProjectedMixGuidance(),
        ocr_guider=AdaptiveProjectedMixGuidance(adaptive_projected_guidance_start_step=38),
    )
    return randomize_and_save(pipeline, path)
