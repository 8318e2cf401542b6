from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import (
    SEED,
    WIDER,
    clip_tokenizer,
    randomize_and_save,
    t5_tokenizer,
    tiny_clip,
    tiny_t5,
    tiny_vae,
)

# Further models of a family: name -> (the family's, arguments of the function that makes it).
VARIANTS = {
    "sd35 without T5": ("sd3", {"with_t5": False, "qk_norm": "rms_norm", "dual_attention_layers": (0,)}),
}


def make_tiny_sd3(path: str | Path, with_t5: bool = True, **transformer_config) -> Path:
    """Save a tiny Stable Diffusion 3 pipeline (two CLIPs and, if wanted, a T5) below `path` and return the path.

    transformer_config: what differs from 3.0, such as `qk_norm` and `dual_attention_layers` of 3.5.
    """
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline

    torch.manual_seed(SEED)
    clip_1, clip_2, t5 = clip_tokenizer(), clip_tokenizer(), t5_tokenizer()
    transformer = SD3Transformer2DModel(
        sample_size=32,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=32 + WIDER,  # both CLIPs side by side, and the width of the T5
        pooled_projection_dim=32 + WIDER,
        pos_embed_max_size=32,
        **transformer_config,
    )
    text_encoder = tiny_clip(clip_1, projected=True)
    text_encoder.text_projection.weight.data = torch.eye(32)  # as in the released model
    pipeline = StableDiffusion3Pipeline(
        transformer=transformer,
        vae=tiny_vae(scaling_factor=1.5305, shift_factor=0.0609, use_quant_conv=False, use_post_quant_conv=False),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoder=text_encoder,
        tokenizer=clip_1,
        text_encoder_2=tiny_clip(clip_2, hidden_act="gelu", projected=True, width=WIDER),
        tokenizer_2=clip_2,
        text_encoder_3=tiny_t5(t5, width=32 + WIDER) if with_t5 else None,
        tokenizer_3=t5 if with_t5 else None,
    )
    return randomize_and_save(pipeline, path)
