"""Tiny diffusers pipelines with random weights, made offline and saved to a folder; for tests only.

They have the parts, the names and the file layout of the real models, in about 1 MB or less, and cost a fraction
of a second. Weights come from a fixed seed and no parameter is left at zero: with zero-initialised layers, half of a
model could be wired up wrongly and no output would show it.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

_FILES = [import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]

# Further models of some families: name -> (the family's, arguments of the function that makes it).
VARIANTS = {name: variant for file in _FILES for name, variant in getattr(file, "VARIANTS", {}).items()}
_MAKERS = {name: maker for file in _FILES for name, maker in vars(file).items() if name.startswith("make_tiny_")}


def make_tiny(name: str, path: str | Path) -> Path:
    """Save the tiny model of a family, or one of VARIANTS, below `path` and return the path."""
    family, options = VARIANTS.get(name, (name, {}))
    return _MAKERS[f"make_tiny_{family}"](path, **options)
