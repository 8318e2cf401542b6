from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.flux2_klein import make_tiny_flux2_klein


def make_tiny_flux2_klein_kv(path: str | Path) -> Path:
    """Save a tiny FLUX.2 klein KV pipeline below `path` and return the path."""
    return make_tiny_flux2_klein(path, "Flux2KleinKVPipeline")
