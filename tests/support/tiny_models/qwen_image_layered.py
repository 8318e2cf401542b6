from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import save_tiny_qwen_edit, tiny_qwen_vae


def make_tiny_qwen_image_layered(path: str | Path) -> Path:
    """Save a tiny Qwen-Image-Layered pipeline below `path` and return the path."""
    # the pipeline takes images of four channels for latents if these have as many
    stats = {"latents_mean": [0.1, -0.2, 0.3, 0.0, 0.2], "latents_std": [1.5, 2.0, 0.5, 1.0, 0.8]}
    vae = tiny_qwen_vae(input_channels=4, z_dim=5, **stats)
    config = {"in_channels": 20, "out_channels": 5, "use_additional_t_cond": True, "use_layer3d_rope": True}
    return save_tiny_qwen_edit(path, "QwenImageLayeredPipeline", vae, **config)
