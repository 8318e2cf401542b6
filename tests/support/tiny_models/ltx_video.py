from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, randomize_and_save, t5_tokenizer, tiny_t5


def make_tiny_ltx_video(path: str | Path, pipeline: str = "LTXPipeline") -> Path:
    """Save a tiny LTX-Video pipeline below `path` and return the path: 32 pixels and 8 frames a cell."""
    import diffusers
    import torch
    from diffusers import AutoencoderKLLTXVideo, FlowMatchEulerDiscreteScheduler, LTXVideoTransformer3DModel

    torch.manual_seed(SEED)
    tokenizer = t5_tokenizer()
    transformer = LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=4,
        attention_head_dim=8,
        cross_attention_dim=32,
        num_layers=2,
        caption_channels=32,
    )
    widths, ones = (8, 8, 8, 8), (1, 1, 1, 1, 1)
    vae = AutoencoderKLLTXVideo(
        latent_channels=8,
        block_out_channels=widths,
        decoder_block_out_channels=widths,
        layers_per_block=ones,
        decoder_layers_per_block=ones,
    )
    vae.latents_mean.normal_()
    vae.latents_std.uniform_(0.5, 2.0)
    shifts = {"use_dynamic_shifting": True, "shift_terminal": 0.1} if pipeline == "LTXPipeline" else {}
    made = getattr(diffusers, pipeline)(
        transformer=transformer,
        vae=vae,
        scheduler=FlowMatchEulerDiscreteScheduler(**shifts),
        text_encoder=tiny_t5(tokenizer, width=32),
        tokenizer=tokenizer,
    )
    return randomize_and_save(made, path)
