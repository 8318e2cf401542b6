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


def make_tiny_minimax_h3(path: str | Path) -> Path:
    """Save a tiny MiniMax H3 pipeline below `path`, as diffusers' modular pipelines are saved, and return the path.

    Without the second transformer, for references.
    """
    import diffusers
    import torch
    from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer(VISION_TOKENS)
    vae = diffusers.AutoencoderKLMiniMaxH3(
        latent_channels=4,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        norm_num_groups=2,
        decoder_num_layers=1,
        decoder_num_attention_heads=2,
        decoder_attention_head_dim=16,
        # unlike each other: mixed up channels would show
        latents_mean=(0.1, -0.2, 0.3, 0.0),
        latents_std=(1.5, 0.7, 1.1, 0.9),
    )
    audio_vae = diffusers.AutoencoderKLMiniMaxH3Audio(
        encoder_dim=2,
        latent_dim=16,
        latent_channels=4,
        num_attention_heads=2,
        decoder_dim=128,
        resblock_kernel_sizes=(3,),
        resblock_dilation_sizes=((1,),),
        latents_mean=[0.2, 0.1, -0.3, 0.0],
        latents_std=[0.8, 1.2, 1.0, 0.6],
    )
    pipeline = diffusers.MiniMaxH3Blocks().init_pipeline()
    pipeline.update_components(
        text_encoder=Qwen3VLForConditionalGeneration(tiny_qwen3_vl_config(tokenizer, num_layers=51)),
        tokenizer=tokenizer,
        processor=qwen_processor(tokenizer, Qwen3VLProcessor, patch_size=16, max_pixels=256**2),
        transformer=diffusers.MiniMaxH3Transformer3DModel(
            num_attention_heads=2,
            attention_head_dim=16,
            hidden_size=24,
            num_layers=2,
            num_refiner_layers=1,
            ffn_dim=32,
            in_channels=4,
            audio_in_channels=4,
            text_dim=16,
            freq_dim=16,
            time_embed_hidden_dim=24,
            time_embed_dim=16,
            rope_freq_dim=2,
        ),
        vae=vae,
        audio_vae=audio_vae,
        scheduler=diffusers.MiniMaxH3Scheduler(shift=12.0),
        audio_scheduler=diffusers.MiniMaxH3Scheduler(shift=3.0),
    )
    return randomize_and_save(pipeline, path)
