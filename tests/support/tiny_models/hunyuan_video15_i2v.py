from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.hunyuan_video15 import save_tiny_hunyuan_video15


def make_tiny_hunyuan_video15_i2v(path: str | Path) -> Path:
    """Save a tiny HunyuanVideo 1.5 I2V pipeline below `path` and return the path."""
    from transformers import SiglipImageProcessorPil, SiglipVisionConfig, SiglipVisionModel

    vision = SiglipVisionConfig(
        hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8
    )
    return save_tiny_hunyuan_video15(
        path,
        "HunyuanVideo15ImageToVideoPipeline",
        image_encoder=SiglipVisionModel(vision),
        feature_extractor=SiglipImageProcessorPil(size={"height": 16, "width": 16}),
    )
