from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.tiny_models.parts import SEED, gemma_tokenizer, randomize_and_save


def make_tiny_ltx2(path: str | Path) -> Path:
    """Save a tiny LTX-2 pipeline below `path` and return the path: 32 pixels and 8 frames a cell; sound as it needs."""
    return save_tiny_ltx2(path, _tiny_gemma_3, {"caption_channels": 8})


def save_tiny_ltx2(
    path: str | Path, encoder: Callable[[], tuple], transformer: dict, connectors: dict | None = None, **further
) -> Path:
    import torch
    from diffusers import (
        AutoencoderKLLTX2Audio,
        AutoencoderKLLTX2Video,
        FlowMatchEulerDiscreteScheduler,
        LTX2Pipeline,
        LTX2VideoTransformer3DModel,
    )
    from diffusers.pipelines.ltx2 import LTX2TextConnectors, LTX2Vocoder

    torch.manual_seed(SEED)
    text_encoder, tokenizer = encoder()
    rope = {"rope_double_precision": False, "rope_type": "split"}
    denoiser = LTX2VideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=12,
        cross_attention_dim=24,
        audio_in_channels=4,
        audio_out_channels=4,
        audio_num_attention_heads=2,
        audio_attention_head_dim=8,
        audio_cross_attention_dim=16,
        num_layers=2,
        **rope,
        **transformer,
    )
    connector = {
        "num_attention_heads": 4,
        "attention_head_dim": 2,
        "num_layers": 1,
        "num_learnable_registers": 8,
    }
    options = {
        f"{stream}_connector_{name}": value for stream in ("video", "audio") for name, value in connector.items()
    }
    options |= {"caption_channels": 8, "text_proj_in_factor": 3, "connector_rope_base_seq_len": 32, **rope}
    text_connectors = LTX2TextConnectors(**{**options, **(connectors or {})})
    vae = AutoencoderKLLTX2Video(
        latent_channels=8,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1),
        upsample_factor=(1, 1, 1),
        upsample_residual=(False, False, False),
        spatial_compression_ratio=32,
        temporal_compression_ratio=8,
        decoder_causal=False,
    )
    audio_vae = AutoencoderKLLTX2Audio(
        base_channels=4, ch_mult=(1, 1, 1), num_res_blocks=1, resolution=32, latent_channels=2, mel_bins=8
    )
    for autoencoder in (vae, audio_vae):
        autoencoder.latents_mean.normal_()
        autoencoder.latents_std.uniform_(0.5, 2.0)
    pipeline = LTX2Pipeline(
        transformer=denoiser,
        connectors=text_connectors,
        vae=vae,
        audio_vae=audio_vae,
        vocoder=LTX2Vocoder(
            in_channels=16,
            hidden_channels=32,
            upsample_kernel_sizes=[15, 16],
            upsample_factors=[15, 16],
            resnet_kernel_sizes=[3],
            resnet_dilations=[[1, 3, 5]],
        ),
        scheduler=FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True,
            base_shift=0.95,
            max_shift=2.05,
            base_image_seq_len=1024,
            max_image_seq_len=4096,
            shift_terminal=0.1,
        ),
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        **further,
    )
    return randomize_and_save(pipeline, path)


def _tiny_gemma_3() -> tuple:
    """A tiny Gemma 3 of the kind that also sees images, and its tokenizer."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    tokenizer = gemma_tokenizer()
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "sliding_window": 64,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=1, attn_implementation="eager")
    return Gemma3ForConditionalGeneration(config), tokenizer
