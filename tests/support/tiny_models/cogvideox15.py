from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.cogvideox import save_tiny_cogvideox


def make_tiny_cogvideox15(path: str | Path) -> Path:
    """Save a tiny CogVideoX 1.5 pipeline below `path` and return the path: two latent frames a token."""
    return save_tiny_cogvideox(path, patch_size_t=2, patch_bias=False)


def make_tiny_cogvideox15_i2v(path: str | Path) -> Path:
    """Save a tiny CogVideoX 1.5 I2V pipeline below `path` and return the path: the first frame in 4 more channels."""
    return save_tiny_cogvideox(
        path,
        pipeline="CogVideoXImageToVideoPipeline",
        vae={"invert_scale_latents": True},
        in_channels=8,
        patch_size_t=2,
        patch_bias=False,
        ofs_embed_dim=16,
    )
