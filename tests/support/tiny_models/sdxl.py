from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import (
    SD_BETAS,
    SEED,
    WIDER,
    clip_tokenizer,
    randomize_and_save,
    tiny_clip,
    tiny_vae,
)

# Further models of a family: name -> (the family's, arguments of the function that makes it).
VARIANTS = {
    "sdxl v": ("sdxl", {"prediction_type": "v_prediction"}),
}


def make_tiny_sdxl(
    path: str | Path,
    prediction_type: str = "epsilon",
    in_channels: int = 4,
    pipeline: str = "StableDiffusionXLPipeline",
) -> Path:
    """Save a tiny Stable Diffusion XL pipeline below `path` and return the path.

    Its U-Net has the levels and layers of the real one, because kohya's format numbers the blocks of that one. The
    second text encoder is wider than the first: diffusers tells those of a single file apart by it.
    prediction_type: "epsilon" or "v_prediction", written to the scheduler's config.
    in_channels: of the U-Net; 9 for inpainting.
    """
    import diffusers
    import torch
    from diffusers import EulerDiscreteScheduler, UNet2DConditionModel

    torch.manual_seed(SEED)
    clip_1, clip_2 = clip_tokenizer(), clip_tokenizer()
    unet = UNet2DConditionModel(
        sample_size=16,
        in_channels=in_channels,
        out_channels=4,
        block_out_channels=(8, 8, 16),
        layers_per_block=2,
        norm_num_groups=2,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 1, 2),
        cross_attention_dim=32 + WIDER,
        attention_head_dim=(2, 2, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=6 * 8 + WIDER,
    )
    made = getattr(diffusers, pipeline)(
        unet=unet,
        vae=tiny_vae(scaling_factor=0.13025),
        text_encoder=tiny_clip(clip_1),
        tokenizer=clip_1,
        text_encoder_2=tiny_clip(clip_2, hidden_act="gelu", projected=True, width=WIDER),
        tokenizer_2=clip_2,
        scheduler=EulerDiscreteScheduler(
            **SD_BETAS, prediction_type=prediction_type, timestep_spacing="leading", steps_offset=1
        ),
        add_watermarker=False,
    )
    return randomize_and_save(made, path)
