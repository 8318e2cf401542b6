from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import (
    SEED,
    qwen_tokenizer,
    randomize_and_save,
    t5_tokenizer,
    tiny_qwen3,
    tiny_qwen_vae,
)


def make_tiny_anima(path: str | Path) -> Path:
    """Save a tiny Anima pipeline below `path`, as diffusers' modular pipelines are saved, and return the path."""
    import diffusers
    import torch

    torch.manual_seed(SEED)
    tokenizer, t5 = qwen_tokenizer(), t5_tokenizer()
    pipeline = diffusers.AnimaAutoBlocks().init_pipeline()
    pipeline.update_components(
        text_encoder=tiny_qwen3(tokenizer),
        tokenizer=tokenizer,
        t5_tokenizer=t5,
        text_conditioner=diffusers.AnimaTextConditioner(
            source_dim=16,
            target_dim=16,
            model_dim=16,
            num_layers=1,
            num_attention_heads=2,
            mlp_ratio=2.0,
            target_vocab_size=len(t5),
            min_sequence_length=32,
        ),
        transformer=diffusers.CosmosTransformer3DModel(
            in_channels=4,
            out_channels=4,
            num_attention_heads=2,
            attention_head_dim=16,
            num_layers=2,
            mlp_ratio=2,
            text_embed_dim=16,
            adaln_lora_dim=4,
            max_size=(4, 32, 32),
            patch_size=(1, 2, 2),
            rope_scale=(1.0, 4.0, 4.0),
            concat_padding_mask=True,
            extra_pos_embed_type=None,
        ),
        vae=tiny_qwen_vae(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
    )
    return randomize_and_save(pipeline, path)
