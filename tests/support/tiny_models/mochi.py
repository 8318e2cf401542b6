from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, randomize_and_save, t5_tokenizer, tiny_t5


def make_tiny_mochi(path: str | Path) -> Path:
    """Save a tiny Mochi pipeline below `path` and return the path. Its VAE has groups of 32 channels for norms."""
    import torch
    from diffusers import AutoencoderKLMochi, FlowMatchEulerDiscreteScheduler, MochiPipeline, MochiTransformer3DModel

    torch.manual_seed(SEED)
    tokenizer = t5_tokenizer(max_length=256)
    transformer = MochiTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=2,
        pooled_projection_dim=16,
        text_embed_dim=32,
        time_embed_dim=16,
    )
    pipeline = MochiPipeline(
        transformer=transformer,
        vae=AutoencoderKLMochi(
            encoder_block_out_channels=(32,) * 4,
            decoder_block_out_channels=(32,) * 4,
            layers_per_block=(1,) * 5,
            scaling_factor=1.5,
        ),
        scheduler=FlowMatchEulerDiscreteScheduler(invert_sigmas=True),
        text_encoder=tiny_t5(tokenizer, width=32),
        tokenizer=tokenizer,
        force_zeros_for_empty_prompt=True,
    )
    return randomize_and_save(pipeline, path)
