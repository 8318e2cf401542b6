from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import (
    SEED,
    WIDER,
    clip_tokenizer,
    qwen_tokenizer,
    randomize_and_save,
    t5_tokenizer,
    tiny_clip,
    tiny_t5,
    tiny_vae,
)


def make_tiny_hidream(path: str | Path) -> Path:
    """Save a tiny HiDream-I1 pipeline below `path` and return the path. Its CLIPs take 128 tokens, as the real ones."""
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, HiDreamImagePipeline, HiDreamImageTransformer2DModel
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    clip, t5, llama = clip_tokenizer(128), t5_tokenizer(), qwen_tokenizer()
    text_encoder = LlamaConfig(
        vocab_size=len(llama),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        bos_token_id=0,
        eos_token_id=llama.eos_token_id,
    )
    transformer = HiDreamImageTransformer2DModel(
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_channels=[32, 16],
        text_emb_dim=32 + WIDER,
        axes_dims_rope=(4, 2, 2),
        max_resolution=(48, 48),
        llama_layers=(0, 1),
    )
    pipeline = HiDreamImagePipeline(
        transformer=transformer,
        vae=tiny_vae(scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoder=tiny_clip(clip, projected=True, num_tokens=128),
        tokenizer=clip,
        text_encoder_2=tiny_clip(clip, hidden_act="gelu", projected=True, width=WIDER, num_tokens=128),
        tokenizer_2=clip,
        text_encoder_3=tiny_t5(t5, width=32),
        tokenizer_3=t5,
        text_encoder_4=LlamaForCausalLM(text_encoder),
        tokenizer_4=llama,
    )
    return randomize_and_save(pipeline, path)
