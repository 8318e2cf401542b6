"""Writes LoRAs with the layer names of ComfyUI and kohya's scripts, for families that describe them by LayerNames.

Where such a file has one layer for several of diffusers, their adapters become one of the sum of their ranks: the first
matrices are stacked and the second ones are the blocks of a diagonal, which is exact. kohya's scripts write the same if
they train the parts apart, and diffusers' own converter splits it again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from modules.weights.errors import WeightsError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from modules.families.LayerNames import LayerNames
    from modules.weights.lora_layers import LoraLayer

_BLOCK = re.compile(r"\b\d+\b")  # the number of a block: the first one in a path


def foreign_tensors(layers: Mapping[str, LoraLayer], names: LayerNames) -> dict[str, Tensor]:
    """`<name>.lora_down.weight`, `.lora_up.weight` and `.alpha` of each layer of a component, or as `folds_alpha` says.

    layers: by path, as in diffusers' format; fused ones completely, see `with_whole_groups`.
    Raises WeightsError for a layer that the format has no name for, and for the magnitudes of DoRA.
    """
    import torch

    tensors: dict[str, Tensor] = {}
    own_order = {
        path: with_swapped_halves(layer) if _split(path)[0] in names.swapped else layer
        for path, layer in layers.items()
    }
    for name, parts in _grouped(own_order, names).items():
        if any(layer.magnitude is not None for layer in parts):
            raise WeightsError("ComfyUI's format of this family can't hold DoRA; choose the diffusers format.")
        if len(parts) > 1:
            down, up, alpha = _fused(parts)
        else:
            down, up, alpha = parts[0].down, parts[0].up, float(parts[0].alpha)
        name = names.prefix + (name.replace(".", "_") if names.flat else name)
        if names.folds_alpha:
            tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"] = down, up * (alpha / len(down))
            continue
        tensors[f"{name}.lora_down.weight"], tensors[f"{name}.lora_up.weight"] = down, up
        tensors[f"{name}.alpha"] = torch.tensor(alpha)
    return tensors


def with_swapped_halves(layer: LoraLayer) -> LoraLayer:
    """The adapter of a layer whose outputs are in two halves, for one that has the second half first."""
    import torch

    up, magnitude = (
        None if outputs is None else torch.cat(outputs.chunk(2)[::-1]) for outputs in (layer.up, layer.magnitude)
    )
    assert up is not None
    return replace(layer, up=up, magnitude=magnitude)


def single_name(names: LayerNames, path: str) -> str | None:
    """The name of a layer that is not fused, with its prefix; None if the format has none for it."""
    pattern, number = _split(path)
    name = names.names[pattern].format(number) if pattern in names.names else None if names.names else path
    return name and names.prefix + (name.replace(".", "_") if names.flat else name)


def with_whole_groups(layers: Mapping[str, LoraLayer], module: nn.Module, names: LayerNames) -> dict[str, LoraLayer]:
    """The layers of a module, and adapters that add nothing for those that are fused with one of them."""
    import torch

    from modules.weights.lora_layers import LoraLayer

    whole = dict(layers)
    for path, layer in layers.items():
        pattern, number = _split(path)
        for other in next((paths for paths in names.fused if pattern in paths), ()):
            missing = other.format(number)
            if missing not in whole:
                outputs = module.get_submodule(missing).get_parameter("weight").shape[0]
                zeros = torch.zeros_like(layer.down[:1]), layer.up.new_zeros(outputs, 1)
                whole[missing] = LoraLayer(*zeros, alpha=1.0)
    return whole


def _grouped(layers: Mapping[str, LoraLayer], names: LayerNames) -> dict[str, list[LoraLayer]]:
    """Name in the file -> its layers, in the order of their outputs."""
    groups: dict[str, list[LoraLayer]] = {}
    for path, layer in layers.items():
        pattern, number = _split(path)
        fused = next(((paths, name) for paths, name in names.fused.items() if pattern in paths), None)
        if fused:
            parts = [part.format(number) for part in fused[0]]
            if missing := [part for part in parts if part not in layers]:
                raise WeightsError(
                    f"ComfyUI's format has one layer for '{path}' and '{missing[0]}', which has no adapter; choose the "
                    "diffusers format."
                )
            groups[fused[1].format(number)] = [layers[part] for part in parts]
        elif pattern in names.names:
            groups[names.names[pattern].format(number)] = [layer]
        elif not names.names:
            groups[path] = [layer]
        else:
            raise WeightsError(f"ComfyUI's format has no name for the layer '{path}'; choose the diffusers format.")
    return groups


def _split(path: str) -> tuple[str, str]:
    """The path with {} for the number of its block, and the number."""
    number = _BLOCK.search(path)
    return _BLOCK.sub("{}", path, count=1), number[0] if number else ""


def _fused(parts: Sequence[LoraLayer]) -> tuple[Tensor, Tensor, float]:
    """(down [n r, in], up [all outputs, n r], alpha) of n layers, r being the largest of their ranks."""
    import torch

    rank = max(layer.rank for layer in parts)
    downs, ups = [], []
    for layer in parts:
        down = layer.down.new_zeros(rank, layer.down.shape[1])
        up = layer.up.new_zeros(layer.up.shape[0], rank)
        down[: layer.rank] = layer.down
        up[:, : layer.rank] = layer.up * (layer.alpha / layer.rank)
        downs.append(down)
        ups.append(up)
    return torch.cat(downs), torch.block_diag(*ups), float(rank * len(parts))
