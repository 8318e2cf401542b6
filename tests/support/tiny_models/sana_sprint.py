from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.sana import save_tiny_sana


def make_tiny_sana_sprint(path: str | Path) -> Path:
    """Save a tiny SANA-Sprint pipeline below `path` and return the path."""
    from diffusers import SCMScheduler

    norms = {"guidance_embeds": True, "qk_norm": "rms_norm_across_heads"}
    return save_tiny_sana(path, "SanaSprintPipeline", SCMScheduler(), **norms)
