"""Arithmetic with the layers of LoRAs: their sum, the best approximation of a rank, and what two models differ by.

Everything is computed in float32, one layer at a time. Shapes as in lora_layers.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modules.weights.errors import WeightsError
from modules.weights.lora_layers import Layers, LoraLayer

if TYPE_CHECKING:
    from torch import Tensor

_MORE_VECTORS = 16  # that the random projection of a truncated SVD keeps beside the wanted ones
_POWER_STEPS = 8


def difference_of(layer: LoraLayer) -> Tensor:
    """[out, in] or [out, in, kh, kw], what the adapter adds to its layer's weight."""
    up, down = layer.up.float().flatten(1), layer.down.float().flatten(1)
    return (up @ down * (layer.alpha / layer.rank)).reshape(len(up), *layer.down.shape[1:])


def combined(parts: Sequence[tuple[Layers, float]]) -> Layers:
    """One LoRA that adds what all of them add at their strengths; its ranks are the sums of theirs.

    Raises WeightsError for DoRA, whose layers can't be added, and for LoRAs of models of other shapes.
    """
    import torch

    each: dict[str, dict[str, list[LoraLayer]]] = {}
    for layers, strength in parts:
        for component, of_component in layers.items():
            for path, layer in of_component.items():
                _check_plain(component, path, layer)
                scaled = layer.up.float() * (strength * layer.alpha / layer.rank)
                plain = LoraLayer(layer.down.float(), scaled, float(layer.rank))
                each.setdefault(component, {}).setdefault(path, []).append(plain)
    total: Layers = {}
    for component, by_path in each.items():
        for path, alike in by_path.items():
            if len({(layer.down.shape[1:], layer.up.shape[0]) for layer in alike}) > 1:
                raise WeightsError(f"Their layers '{component}.{path}' differ in size; choose LoRAs of the same model.")
            down, up = torch.cat([layer.down for layer in alike]), torch.cat([layer.up for layer in alike], 1)
            total.setdefault(component, {})[path] = LoraLayer(down, up, float(len(down)))
    return total


def resized(layers: Layers, rank: int | None, share: float = 1.0) -> Layers:
    """The best approximation with at most this rank, by truncated SVD; alpha equals the rank afterwards.

    rank: None for no limit. share: of the squared norm of each layer that has to be kept; the rank is as small as that
    allows.
    Raises WeightsError for DoRA, and for values whose product is infinite.
    """
    import torch

    small: Layers = {}
    for component, of_component in layers.items():
        for path, layer in of_component.items():
            _check_plain(component, path, layer)
            # of the factors, not of their product, which may have millions of values
            left, right = layer.up.float().flatten(1), layer.down.float().flatten(1) * (layer.alpha / layer.rank)
            (q_left, r_left), (q_right, r_right) = torch.linalg.qr(left), torch.linalg.qr(right.T)
            core = r_left @ r_right.T
            if not core.isfinite().all():
                raise WeightsError(
                    f"The layer '{component}.{path}' has values too large to compute with; choose an intact file."
                )
            u, s, vh = torch.linalg.svd(core)
            count = min(rank or len(s), _enough(s, share))
            factors = q_left @ u[:, :count], s[:count], vh[:count] @ q_right.T
            small.setdefault(component, {})[path] = _layer_of(*factors, layer.down.shape[1:])
    return small


def approximated(difference: Tensor, rank: int) -> LoraLayer:
    """The adapter of at most this rank that comes closest to a difference of weights, [out, in] or [out, in, kh, kw].

    Source: Halko et al. 2011, arXiv 0909.4061, by torch.svd_lowrank.
    """
    import torch

    matrix = difference.float().flatten(1)
    count = min(rank, *matrix.shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same file each time
        u, s, v = torch.svd_lowrank(matrix, min(count + _MORE_VECTORS, *matrix.shape), _POWER_STEPS)
    return _layer_of(u[:, :count], s[:count], v[:, :count].T, difference.shape[1:])


def _layer_of(u: Tensor, s: Tensor, vh: Tensor, shape: Sequence[int]) -> LoraLayer:
    """The adapter u diag(s) vh. shape: [in] or [in, kh, kw]."""
    root = s.sqrt()
    up, down = u * root, vh * root[:, None]
    convolution = (1, 1) if len(shape) > 1 else ()
    return LoraLayer(down.reshape(-1, *shape), up.reshape(*up.shape, *convolution), float(len(s)))


def _enough(s: Tensor, share: float) -> int:
    """How many singular values have this share of the squared norm, at least one."""
    if share >= 1:
        return len(s)
    kept = s.square().cumsum(0)
    return min(len(s), int((kept < share * kept[-1]).sum()) + 1)


def _check_plain(component: str, path: str, layer: LoraLayer) -> None:
    if layer.magnitude is not None:
        raise WeightsError(f"The layer '{component}.{path}' has a DoRA, whose size can't be changed; merge it instead.")
