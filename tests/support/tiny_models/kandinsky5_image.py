from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import (
    SEED,
    clip_tokenizer,
    qwen_tokenizer,
    randomize_and_save,
    tiny_clip,
    tiny_qwen_vl,
    tiny_vae,
)


def make_tiny_kandinsky5_image(path: str | Path) -> Path:
    """Save a tiny Kandinsky 5 pipeline for images below `path` and return the path.

    The real one has a processor of texts and images in place of the tokenizer.
    """
    # the pipeline takes 8 pixels a cell for granted
    vae = {"scaling_factor": 0.3611, "shift_factor": 0.1159, "use_quant_conv": False, "use_post_quant_conv": False}
    return save_tiny_kandinsky5(path, "Kandinsky5T2IPipeline", tiny_vae(4, **vae), qwen_tokenizer())


def save_tiny_kandinsky5(path: str | Path, pipeline: str, vae, tokenizer, **transformer_config) -> Path:
    import diffusers
    import torch

    torch.manual_seed(SEED)
    clip = clip_tokenizer()
    transformer = diffusers.Kandinsky5Transformer3DModel(
        in_visual_dim=4,
        out_visual_dim=4,
        in_text_dim=16,
        in_text_dim2=32,
        time_dim=16,
        model_dim=32,
        ff_dim=32,
        num_text_blocks=1,
        num_visual_blocks=1,
        axes_dims=(4, 6, 6),
        **transformer_config,
    )
    made = getattr(diffusers, pipeline)(
        transformer=transformer,
        vae=vae,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoder=tiny_qwen_vl(getattr(tokenizer, "tokenizer", tokenizer)),
        tokenizer=tokenizer,
        text_encoder_2=tiny_clip(clip),
        tokenizer_2=clip,
    )
    return randomize_and_save(made, path)
