from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import (
    SEED,
    clip_tokenizer,
    randomize_and_save,
    t5_tokenizer,
    tiny_clip,
    tiny_t5,
    tiny_vae,
)

# Further models of a family: name -> (the family's, arguments of the function that makes it).
VARIANTS = {
    "flux1 schnell": ("flux1", {"guidance_embeds": False}),
}


def make_tiny_flux1(
    path: str | Path, guidance_embeds: bool = True, pipeline: str = "FluxPipeline", in_channels: int = 16
) -> Path:
    """Save a tiny FLUX.1 pipeline below `path` and return the path. guidance_embeds: as dev has; schnell has none.

    in_channels: of the transformer, for each token.
    """
    import diffusers
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel

    torch.manual_seed(SEED)
    clip, t5 = clip_tokenizer(), t5_tokenizer()
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=in_channels,
        out_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        guidance_embeds=guidance_embeds,
        axes_dims_rope=(4, 4, 8),
    )
    made = getattr(diffusers, pipeline)(
        transformer=transformer,
        vae=tiny_vae(scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=guidance_embeds),
        text_encoder=tiny_clip(clip),
        tokenizer=clip,
        text_encoder_2=tiny_t5(t5, width=32),
        tokenizer_2=t5,
    )
    return randomize_and_save(made, path)


def make_tiny_flux1_kontext(path: str | Path) -> Path:
    """Save a tiny FLUX.1 Kontext pipeline below `path` and return the path."""
    return make_tiny_flux1(path, pipeline="FluxKontextPipeline")
