from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SD_BETAS, SEED, randomize_and_save, t5_tokenizer, tiny_t5

# Further models of a family: name -> (the family's, arguments of the function that makes it).
VARIANTS = {
    "cogvideox 5b": ("cogvideox", {"is_5b": True}),
}


def make_tiny_cogvideox(path: str | Path, is_5b: bool = False) -> Path:
    """Save a tiny CogVideoX pipeline below `path` and return the path.

    is_5b: embed positions and noise latents as 5B does, not 2B.
    """
    return save_tiny_cogvideox(path, is_5b)


def save_tiny_cogvideox(
    path: str | Path, is_5b: bool = True, pipeline: str = "CogVideoXPipeline", vae: dict | None = None, **config
) -> Path:
    import diffusers
    import torch
    from diffusers import (
        AutoencoderKLCogVideoX,
        CogVideoXDDIMScheduler,
        CogVideoXDPMScheduler,
        CogVideoXTransformer3DModel,
        DDIMScheduler,
    )

    torch.manual_seed(SEED)
    tokenizer = t5_tokenizer()
    transformer = CogVideoXTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        out_channels=4,
        time_embed_dim=16,
        text_embed_dim=32,
        num_layers=2,
        sample_width=8,
        sample_height=8 if "patch_size_t" in config else 6,  # 1.5 has no positions beyond
        use_rotary_positional_embeddings=is_5b,
        **{"in_channels": 4, **config},
    )
    autoencoder = AutoencoderKLCogVideoX(
        down_block_types=("CogVideoXDownBlock3D",) * 4,
        up_block_types=("CogVideoXUpBlock3D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=2,
        **(vae or {}),
    )
    kind: type = CogVideoXDPMScheduler if is_5b else CogVideoXDDIMScheduler
    schedule: dict = {"snr_shift_scale": 1.0 if is_5b else 3.0}
    if pipeline == "CogVideoXFunControlPipeline":  # as Chorus saves it
        kind, schedule = DDIMScheduler, {**SD_BETAS, "clip_sample": False}
    made = getattr(diffusers, pipeline)(
        transformer=transformer,
        vae=autoencoder,
        scheduler=kind(
            prediction_type="v_prediction", timestep_spacing="trailing", rescale_betas_zero_snr=True, **schedule
        ),
        text_encoder=tiny_t5(tokenizer, width=32),
        tokenizer=tokenizer,
    )
    return randomize_and_save(made, path)
