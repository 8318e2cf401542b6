from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, gemma_tokenizer, randomize_and_save, tiny_wan_vae


def make_tiny_motif_video(path: str | Path) -> Path:
    """Save a tiny Motif-Video pipeline below `path` and return the path: its text encoder can see a first frame."""
    import torch
    from diffusers import (
        AutoencoderKLWan,
        ClassifierFreeGuidance,
        FlowMatchEulerDiscreteScheduler,
        MotifVideoPipeline,
        MotifVideoTransformer3DModel,
    )
    from transformers import SiglipImageProcessorPil, T5Gemma2Encoder, T5Gemma2EncoderConfig

    torch.manual_seed(SEED)
    tokenizer = gemma_tokenizer()
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {
        "vocab_size": len(tokenizer),
        "num_key_value_heads": 1,
        "head_dim": 8,
        "dropout_rate": 0.0,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {"model_type": "siglip_vision_model", "image_size": 16, "patch_size": 8}
    text_encoder = T5Gemma2EncoderConfig(text_config={**small, **text}, vision_config={**small, **vision})
    transformer = MotifVideoTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        num_layers=1,
        num_single_layers=2,
        num_decoder_layers=1,
        text_embed_dim=16,
        image_embed_dim=16,
        rope_axes_dim=(4, 4, 4),
        enable_text_cross_attention_dual=True,
    )
    for name, parameter in transformer.named_parameters():
        if "norm" in name and name.endswith("linear.weight"):  # of gates: else texts change next to nothing
            parameter.data.mul_(8)
    pipeline = MotifVideoPipeline(
        transformer=transformer,
        vae=AutoencoderKLWan(**tiny_wan_vae(16)),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0),
        text_encoder=T5Gemma2Encoder(text_encoder),
        tokenizer=tokenizer,
        guider=ClassifierFreeGuidance(),
        feature_extractor=SiglipImageProcessorPil(size={"height": 16, "width": 16}),
    )
    return randomize_and_save(pipeline, path)
