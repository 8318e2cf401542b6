"""Exchanges predictions between ranks as the bytes of safetensors files, which can't contain code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from modules.config.errors import UserError
from modules.distributed.errors import RanksError
from modules.distributed.Runtime import Runtime
from modules.weights.errors import WeightsError
from modules.weights.safe import tensors_from_bytes, tensors_to_bytes

_COMPLEX = "complex"  # which safetensors has in one precision only, so its real view is sent


def gather_predictions(own: Sequence[Tensor | None], runtime: Runtime) -> list[Sequence[Tensor | None]]:
    """`own` of each rank, in rank order; the same length on all of them. A collective.

    own: tensors on the CPU. Raises UserError for a kind of tensor that can't be sent, RanksError for one that another
    rank can't have sent.
    """
    if runtime.world_size == 1:
        return [own]
    parts = {}
    for number, tensor in enumerate(own):
        if tensor is not None:
            _check(tensor)
            is_complex = tensor.is_complex()
            name = f"{number}/{_COMPLEX}" if is_complex else str(number)
            parts[name] = torch.view_as_real(tensor.resolve_conj()) if is_complex else tensor.resolve_neg()
    ranks = runtime.gather_bytes(tensors_to_bytes(parts))
    return [_unpacked(data, len(own), rank) for rank, data in enumerate(ranks)]


def _check(tensor: Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        raise UserError(f"predict: the model returns a {kind} tensor, which ranks can't exchange; return a dense one.")


def _unpacked(data: bytes, count: int, rank: int) -> list[Tensor | None]:
    try:
        found: Mapping[str, Tensor] = tensors_from_bytes(data, f"the predictions of rank {rank}")
    except WeightsError as error:
        raise RanksError(f"What rank {rank} sends is not its predictions: check its machine and its log.") from error
    parts: list[Tensor | None] = [None] * count
    for number in range(count):
        if (real := found.get(f"{number}/{_COMPLEX}")) is not None:
            parts[number] = torch.view_as_complex(real)
        else:
            parts[number] = found.get(str(number))
    return parts
