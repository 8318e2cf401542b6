"""LoRA files of other programs, with names that diffusers replaces by its own when it loads them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from modules.weights.libraries import import_pipeline

if TYPE_CHECKING:
    from torch import Tensor

    from modules.families.Family import Family


class ConvertedLayer(NamedTuple):
    down: Tensor
    up: Tensor
    alpha: float


def converted_layers(path: Path, family: Family) -> Mapping[str, Mapping[str, ConvertedLayer]] | None:
    """Component -> path of the layer -> its adapter; None if diffusers does not know the format either."""
    pipeline = cast("Any", import_pipeline(family.pipeline))
    if not hasattr(pipeline, "lora_state_dict"):
        return None
    taken = inspect.signature(pipeline.lora_state_dict).parameters
    options = {"return_alphas": True} if "return_alphas" in taken else {}
    try:
        read = pipeline.lora_state_dict(str(path.parent), weight_name=path.name, local_files_only=True, **options)
    except (ValueError, KeyError, RuntimeError, IndexError):  # its converters fail in many ways on what they don't know
        return None
    tensors, alphas = read if isinstance(read, tuple) else (read, None)
    layers: dict[str, dict[str, ConvertedLayer]] = {}
    for name, up in tensors.items():
        stem = name.removesuffix(".lora_B.weight")
        component, _, layer = stem.partition(".")
        if stem == name:
            continue
        down = tensors.get(f"{stem}.lora_A.weight")
        if down is None or component not in family.lora_targets:
            return None
        layers.setdefault(component, {})[layer] = ConvertedLayer(
            down, up, float((alphas or {}).get(f"{stem}.alpha", len(down)))
        )
    return layers or None
