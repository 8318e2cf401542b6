from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, randomize_and_save, t5_tokenizer, tiny_t5, tiny_vae


def make_tiny_cogview3_plus(path: str | Path) -> Path:
    """Save a tiny CogView3-Plus pipeline below `path` and return the path."""
    import torch
    from diffusers import CogVideoXDDIMScheduler, CogView3PlusPipeline, CogView3PlusTransformer2DModel

    torch.manual_seed(SEED)
    tokenizer = t5_tokenizer()
    transformer = CogView3PlusTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        text_embed_dim=32,
        time_embed_dim=8,
        condition_dim=4,
        pos_embed_max_size=32,
        sample_size=16,
    )
    pipeline = CogView3PlusPipeline(
        transformer=transformer,
        vae=tiny_vae(scaling_factor=1.0, use_quant_conv=False, use_post_quant_conv=False),
        scheduler=CogVideoXDDIMScheduler(
            prediction_type="v_prediction",
            rescale_betas_zero_snr=True,
            snr_shift_scale=4.0,
            timestep_spacing="trailing",
        ),
        text_encoder=tiny_t5(tokenizer, width=32),
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipeline, path)
