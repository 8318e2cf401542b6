from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.ltx2 import save_tiny_ltx2
from tests.support.tiny_models.parts import SEED, gemma_tokenizer


def make_tiny_ltx25(path: str | Path) -> Path:
    """Save a tiny LTX-2.5 pipeline below `path` and return the path: as LTX-2, with gates and a text for sound."""
    import torch
    from diffusers.pipelines.ltx2 import LTX2DurationHead

    torch.manual_seed(SEED)
    head = LTX2DurationHead(
        video_cross_attention_dim=24, audio_cross_attention_dim=16, pooler_hidden_dim=8, mlp_hidden_dim=8
    )
    gates = {"gated_attn": True, "audio_gated_attn": True, "cross_attn_mod": True, "audio_cross_attn_mod": True}
    later = {"use_prompt_embeddings": False, "perturbed_attn": True, "ff_bias": False}
    connectors = {
        "video_connector_attention_head_dim": 6,
        "audio_connector_attention_head_dim": 4,
        "per_modality_projections": True,
        "video_hidden_dim": 24,
        "audio_hidden_dim": 16,
        "proj_bias": True,
        "video_gated_attn": True,
        "audio_gated_attn": True,
    }
    transformer = {**gates, **later, "use_keyframes_abs_pos_embedding": True}
    return save_tiny_ltx2(path, _tiny_gemma_4, transformer, connectors, duration_head=head)


def _tiny_gemma_4() -> tuple:
    """A tiny Gemma 4 of the kind without towers for images and sound, and its tokenizer."""
    from transformers import Gemma4UnifiedConfig, Gemma4UnifiedForConditionalGeneration

    tokenizer = gemma_tokenizer()
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "global_head_dim": 16,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 64,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {"patch_size": 2, "mm_embed_dim": 8, "mm_posemb_size": 8, "output_proj_dims": 8}
    config = Gemma4UnifiedConfig(
        text_config=text, vision_config=vision, audio_config={"audio_embed_dim": 8}, attn_implementation="eager"
    )
    return Gemma4UnifiedForConditionalGeneration(config), tokenizer
