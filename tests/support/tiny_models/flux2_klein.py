from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, qwen_tokenizer, randomize_and_save, tiny_flux2_parts


def make_tiny_flux2_klein(path: str | Path, pipeline: str = "Flux2KleinPipeline") -> Path:
    """Save a tiny FLUX.2 klein pipeline below `path` and return the path. pipeline: a class of diffusers."""
    import diffusers
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=28,  # the denoiser reads the outputs of the 9th, 18th and 27th
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=4,
        max_position_embeddings=512,
    )
    made = getattr(diffusers, pipeline)(
        text_encoder=Qwen3ForCausalLM(config),
        tokenizer=tokenizer,
        **tiny_flux2_parts(guidance_embeds=False),
    )
    return randomize_and_save(made, path)
