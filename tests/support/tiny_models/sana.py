from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, instructed_gemma, randomize_and_save


def make_tiny_sana(path: str | Path) -> Path:
    """Save a tiny Sana pipeline below `path` and return the path."""
    from diffusers import DPMSolverMultistepScheduler

    flow = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
    return save_tiny_sana(path, "SanaPipeline", DPMSolverMultistepScheduler(**flow))


def save_tiny_sana(path: str | Path, pipeline_class: str, scheduler, **config) -> Path:
    import diffusers
    import torch
    from diffusers import AutoencoderDC, SanaTransformer2DModel

    from modules.families.sana import SANA

    torch.manual_seed(SEED)
    text_encoder, tokenizer = instructed_gemma(SANA)
    transformer = SanaTransformer2DModel(
        patch_size=1,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        num_attention_heads=2,
        attention_head_dim=4,
        num_cross_attention_heads=2,
        cross_attention_head_dim=4,
        cross_attention_dim=8,
        caption_channels=8,
        sample_size=32,
        **config,
    )
    blocks = {
        f"{half}_{name}": value
        for half in ("encoder", "decoder")
        for name, value in {
            "block_types": ("ResBlock", "EfficientViTBlock"),
            "block_out_channels": (8, 8),
            "qkv_multiscales": ((), (5,)),
            "layers_per_block": (1, 1),
        }.items()
    }
    pipeline = getattr(diffusers, pipeline_class)(
        transformer=transformer,
        vae=AutoencoderDC(
            latent_channels=4,
            attention_head_dim=2,
            downsample_block_type="conv",
            upsample_block_type="interpolate",
            scaling_factor=0.41407,
            **blocks,
        ),
        scheduler=scheduler,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipeline, path)
