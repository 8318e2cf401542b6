from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, randomize_and_save, t5_tokenizer, tiny_umt5, tiny_wan_vae


def make_tiny_wan21(path: str | Path) -> Path:
    """Save a tiny Wan 2.1 pipeline below `path` and return the path."""
    return save_tiny_wan(path)


def save_tiny_wan(
    path: str | Path,
    channels: int = 16,
    experts: int = 1,
    vae: dict | None = None,
    further_channels: int = 0,
    pipeline: str = "WanPipeline",
    transformer: str = "WanTransformer3DModel",
    heads: int = 2,
    seen: dict | None = None,
    **options,
) -> Path:
    """seen: how the transformer takes what it sees beside the latents, such as the 16 features of an image encoder."""
    import diffusers
    import torch
    from diffusers import AutoencoderKLWan, UniPCMultistepScheduler

    torch.manual_seed(SEED)
    tokenizer = t5_tokenizer()
    transformers = [
        getattr(diffusers, transformer)(
            num_attention_heads=heads,
            attention_head_dim=12,
            in_channels=channels + further_channels,
            out_channels=channels,
            text_dim=32,
            freq_dim=32,
            ffn_dim=32,
            num_layers=2,
            rope_max_seq_len=32,
            **(seen or {}),
        )
        for _ in range(experts)
    ]
    if experts > 1:
        options["transformer_2"] = transformers[1]
    if seen and "image_dim" in seen:
        options |= {"image_encoder": tiny_clip_vision(), "image_processor": tiny_clip_processor()}
    made = getattr(diffusers, pipeline)(
        transformer=transformers[0],
        vae=AutoencoderKLWan(**tiny_wan_vae(channels), **(vae or {})),
        scheduler=UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0),
        text_encoder=tiny_umt5(tokenizer, width=32),
        tokenizer=tokenizer,
        **options,
    )
    return randomize_and_save(made, path)


def tiny_clip_vision():
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=3,  # the last one is not used
        num_attention_heads=2,
        image_size=16,
        patch_size=8,
    )
    return CLIPVisionModel(config)


def tiny_clip_processor():
    from transformers import CLIPImageProcessorPil

    return CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
