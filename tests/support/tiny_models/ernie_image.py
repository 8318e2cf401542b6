from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, qwen_tokenizer, randomize_and_save, tiny_flux2_vae


def make_tiny_ernie_image(path: str | Path) -> Path:
    """Save a tiny ERNIE-Image pipeline below `path` and return the path."""
    import torch
    from diffusers import ErnieImagePipeline, ErnieImageTransformer2DModel, FlowMatchEulerDiscreteScheduler
    from transformers import Mistral3Config, Mistral3Model

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer()
    layers = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    text = {"vocab_size": len(tokenizer), "num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 8, **layers}
    config = Mistral3Config(
        text_config={"model_type": "mistral", **text},
        vision_config={"model_type": "pixtral", "num_hidden_layers": 1, "head_dim": 8, **layers},
    )
    transformer = ErnieImageTransformer2DModel(
        hidden_size=32,
        num_attention_heads=2,
        num_layers=2,
        ffn_hidden_size=32,
        in_channels=16,
        out_channels=16,
        text_in_dim=16,
        rope_axes_dim=(4, 6, 6),
    )
    pipeline = ErnieImagePipeline(
        transformer=transformer,
        vae=tiny_flux2_vae(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoder=Mistral3Model(config),
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipeline, path)
