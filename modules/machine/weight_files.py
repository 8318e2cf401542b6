"""Which files in a component's folder hold the weights that are loaded, told by their names."""

from __future__ import annotations

import re
from collections.abc import Collection

VARIANTS = ("fp16", "bf16")  # in the order in which they are taken where there are no plain weights
_STEM = r"(?:diffusion_pytorch_model|pytorch_model|model)"
_VARIANT = rf"\.(?P<variant>{'|'.join(VARIANTS)})"
_SHARD = r"(?:-\d{5}-of-\d{5})?"
# Older versions of diffusers put the number of a shard behind the variant.
WEIGHTS = re.compile(rf"{_STEM}{_SHARD}(?:{_VARIANT}{_SHARD})?\.(?P<format>safetensors|bin)")
INDEX = re.compile(rf"{_STEM}\.(?P<format>safetensors|bin)\.index(?:{_VARIANT})?\.json")


def loaded_copy(names: Collection[str]) -> tuple[str, str] | None:
    """(variant, format) of the weights in a component's folder that are loaded; None if it has none.

    names: of its files. The variant is "" for plain weights, which go before the others. Of one variant, safetensors
    goes before bin.
    """
    for kind in (WEIGHTS, INDEX):
        found = {(match["variant"] or "", match["format"]) for name in names if (match := kind.fullmatch(name))}
        for variant in ("", *VARIANTS):
            for suffix in ("safetensors", "bin"):
                if (variant, suffix) in found:
                    return variant, suffix
    return None


def loaded_weights(names: Collection[str]) -> list[str]:
    """The files with the weights that are loaded, and their index if they are shards, sorted."""
    copy = loaded_copy(names)
    matches = {name: WEIGHTS.fullmatch(name) or INDEX.fullmatch(name) for name in names}
    return sorted(
        name for name, match in matches.items() if match and (match["variant"] or "", match["format"]) == copy
    )


def loaded_variant(names: Collection[str]) -> str | None:
    """The `variant` of `from_pretrained` with which a component is loaded."""
    copy = loaded_copy(names)
    return (copy[0] if copy else "") or None
