from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, randomize_and_save, t5_tokenizer, tiny_umt5, tiny_vae


def make_tiny_auraflow(path: str | Path) -> Path:
    """Save a tiny AuraFlow pipeline below `path` and return the path."""
    import torch
    from diffusers import AuraFlowPipeline, AuraFlowTransformer2DModel, FlowMatchEulerDiscreteScheduler

    torch.manual_seed(SEED)
    tokenizer = t5_tokenizer()
    transformer = AuraFlowTransformer2DModel(
        sample_size=32,
        patch_size=2,
        in_channels=4,
        num_mmdit_layers=1,
        num_single_dit_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=32,
        out_channels=4,
        pos_embed_max_size=256,
    )
    for name, parameter in transformer.named_parameters():
        if "norm" in name:  # gates: nearly closed when they are made, so that no text would show
            parameter.data *= 4
    pipeline = AuraFlowPipeline(
        transformer=transformer,
        vae=tiny_vae(scaling_factor=0.13025),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.73),
        text_encoder=tiny_umt5(tokenizer, width=32),
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipeline, path)
