from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, clip_tokenizer, qwen_tokenizer, randomize_and_save, tiny_clip


def make_tiny_hunyuan_video(path: str | Path) -> Path:
    """Save a tiny HunyuanVideo pipeline below `path` and return the path."""
    import torch
    from diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video import DEFAULT_PROMPT_TEMPLATE
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer()
    tokenizer.padding_side = "right"
    # longer words of the instruction as one token: it has to be of 95 tokens or a few more
    instruction = DEFAULT_PROMPT_TEMPLATE["template"].split()
    tokenizer.add_tokens(sorted({f" {word}" for word in instruction if len(word) > 2}))
    text_encoder = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        pad_token_id=tokenizer.pad_token_id,
    )
    return save_tiny_hunyuan_video(path, "HunyuanVideoPipeline", LlamaModel(text_encoder), tokenizer)


def save_tiny_hunyuan_video(
    path: str | Path, pipeline: str, text_encoder, tokenizer, image_condition_type: str | None = None, **parts
) -> Path:
    import diffusers
    from diffusers import AutoencoderKLHunyuanVideo, FlowMatchEulerDiscreteScheduler, HunyuanVideoTransformer3DModel

    clip = clip_tokenizer()
    transformer = HunyuanVideoTransformer3DModel(
        image_condition_type=image_condition_type,
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=10,
        num_layers=1,
        num_single_layers=1,
        num_refiner_layers=1,
        text_embed_dim=16,
        pooled_projection_dim=32,
        rope_axes_dim=(2, 4, 4),
    )
    vae = AutoencoderKLHunyuanVideo(
        latent_channels=4,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        norm_num_groups=4,
    )
    made = getattr(diffusers, pipeline)(
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        transformer=transformer,
        vae=vae,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0),
        text_encoder_2=tiny_clip(clip),
        tokenizer_2=clip,
        **parts,
    )
    return randomize_and_save(made, path)
