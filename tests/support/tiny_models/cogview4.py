from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, gemma_tokenizer, randomize_and_save, tiny_vae


def make_tiny_cogview4(path: str | Path, pipeline: str = "CogView4Pipeline", in_channels: int = 4) -> Path:
    """Save a tiny CogView4 pipeline below `path` and return the path."""
    import diffusers
    import torch
    from diffusers import CogView4Transformer2DModel, FlowMatchEulerDiscreteScheduler
    from tokenizers.processors import TemplateProcessing
    from transformers import GlmConfig, GlmModel, PreTrainedTokenizerFast

    torch.manual_seed(SEED)
    tokens = gemma_tokenizer()
    backend = tokens.backend_tokenizer  # begins each text with a token, so that none is empty
    backend.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", tokens.bos_token_id)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", padding_side="left")
    text_encoder = GlmConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        pad_token_id=tokenizer.pad_token_id,
    )
    transformer = CogView4Transformer2DModel(
        in_channels=in_channels,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        text_embed_dim=16,
        time_embed_dim=8,
        condition_dim=4,
        rope_axes_dim=(8, 8),
    )
    made = getattr(diffusers, pipeline)(
        transformer=transformer,
        vae=tiny_vae(scaling_factor=1.0, use_quant_conv=False, use_post_quant_conv=False),
        scheduler=FlowMatchEulerDiscreteScheduler(
            base_shift=0.25, max_shift=0.75, use_dynamic_shifting=True, time_shift_type="linear"
        ),
        text_encoder=GlmModel(text_encoder),
        tokenizer=tokenizer,
    )
    return randomize_and_save(made, path)
