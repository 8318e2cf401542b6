from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, qwen_tokenizer, randomize_and_save, tiny_t5


def make_tiny_hunyuan_video15(path: str | Path) -> Path:
    """Save a tiny HunyuanVideo 1.5 pipeline below `path` and return the path."""
    return save_tiny_hunyuan_video15(path, "HunyuanVideo15Pipeline")


def save_tiny_hunyuan_video15(path: str | Path, pipeline: str, **further_parts) -> Path:
    import diffusers
    import torch
    from diffusers import (
        AutoencoderKLHunyuanVideo15,
        ClassifierFreeGuidance,
        FlowMatchEulerDiscreteScheduler,
        HunyuanVideo15Transformer3DModel,
    )
    from transformers import ByT5Tokenizer

    torch.manual_seed(SEED)
    tokenizer, letters = qwen_tokenizer(), ByT5Tokenizer()
    transformer = HunyuanVideo15Transformer3DModel(
        in_channels=9,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=10,
        num_layers=1,
        num_refiner_layers=1,
        text_embed_dim=16,
        text_embed_2_dim=32,
        image_embed_dim=8,
        rope_axes_dim=(2, 4, 4),
    )
    vae = AutoencoderKLHunyuanVideo15(latent_channels=4, block_out_channels=(32, 32, 32, 32, 32), layers_per_block=1)
    made = getattr(diffusers, pipeline)(
        text_encoder=tiny_qwen_text(tokenizer),
        tokenizer=tokenizer,
        transformer=transformer,
        vae=vae,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0),
        text_encoder_2=tiny_t5(letters, width=32),
        tokenizer_2=letters,
        guider=ClassifierFreeGuidance(),
        **further_parts,
    )
    return randomize_and_save(made, path)


def tiny_qwen_text(tokenizer):
    from transformers import Qwen2_5_VLTextConfig, Qwen2_5_VLTextModel

    config = Qwen2_5_VLTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=4,  # the last two are not used
        num_attention_heads=2,
        num_key_value_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 2]},
    )
    return Qwen2_5_VLTextModel(config)
