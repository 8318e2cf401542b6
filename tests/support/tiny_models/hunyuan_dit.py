from __future__ import annotations

import string
from pathlib import Path

from tests.support.tiny_models.parts import SEED, WORDS, randomize_and_save, t5_tokenizer, tiny_t5, tiny_vae


def make_tiny_hunyuan_dit(path: str | Path) -> Path:
    """Save a tiny Hunyuan-DiT pipeline below `path` and return the path. It takes sizes, as the first version."""
    import torch
    from diffusers import DDPMScheduler, HunyuanDiT2DModel, HunyuanDiTPipeline
    from transformers import BertConfig, BertModel, BertTokenizer

    torch.manual_seed(SEED)
    t5 = t5_tokenizer()
    letters = sorted(set(string.printable) - set(string.whitespace))
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *letters, *(f"##{letter}" for letter in letters)]
    bert = BertTokenizer(vocab={token: number for number, token in enumerate(dict.fromkeys(tokens))})
    text_encoder = BertConfig(
        vocab_size=len(bert),
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    transformer = HunyuanDiT2DModel(
        in_channels=4,
        patch_size=2,
        num_attention_heads=4,
        attention_head_dim=8,
        hidden_size=32,
        num_layers=4,
        cross_attention_dim=32,
        cross_attention_dim_t5=32,
        pooled_projection_dim=32,
    )
    betas = {"beta_start": 0.00085, "beta_end": 0.018, "beta_schedule": "scaled_linear"}
    pipeline = HunyuanDiTPipeline(
        transformer=transformer,
        vae=tiny_vae(4, scaling_factor=0.13025),  # the pipeline takes 8 pixels a cell for granted
        scheduler=DDPMScheduler(**betas, prediction_type="v_prediction", clip_sample=False, steps_offset=1),
        text_encoder=BertModel(text_encoder),
        tokenizer=bert,
        text_encoder_2=tiny_t5(t5, width=32),
        tokenizer_2=t5,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    return randomize_and_save(pipeline, path)
