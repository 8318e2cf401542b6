from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SD_BETAS, SEED, clip_tokenizer, randomize_and_save, tiny_clip, tiny_vae

# Further models of a family: name -> (the family's, arguments of the function that makes it).
VARIANTS = {
    "sd15 v": ("sd15", {"prediction_type": "v_prediction", "sd2": True}),
}


def make_tiny_sd15(
    path: str | Path,
    prediction_type: str = "epsilon",
    sd2: bool = False,
    in_channels: int = 4,
    pipeline: str = "StableDiffusionPipeline",
) -> Path:
    """Save a tiny Stable Diffusion pipeline below `path` and return the path.

    prediction_type: "epsilon" or "v_prediction", written to the scheduler's config.
    sd2: the 2.x build: linear projections around attention, heads per level, a text encoder with gelu.
    in_channels: of the U-Net; 9 for inpainting.
    """
    import diffusers
    import torch
    from diffusers import DDIMScheduler, UNet2DConditionModel

    torch.manual_seed(SEED)
    tokenizer = clip_tokenizer()
    unet = UNet2DConditionModel(
        sample_size=16,
        in_channels=in_channels,
        out_channels=4,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=2,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=(2, 4) if sd2 else 4,
        use_linear_projection=sd2,
    )
    made = getattr(diffusers, pipeline)(
        unet=unet,
        vae=tiny_vae(scaling_factor=0.18215),
        text_encoder=tiny_clip(tokenizer, hidden_act="gelu" if sd2 else "quick_gelu"),
        tokenizer=tokenizer,
        scheduler=DDIMScheduler(
            **SD_BETAS, prediction_type=prediction_type, clip_sample=False, set_alpha_to_one=False, steps_offset=1
        ),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    return randomize_and_save(made, path)
