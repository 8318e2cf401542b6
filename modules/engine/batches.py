"""What a batch of any form holds: how many samples, and its tensors on the device."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, device
from torch.nn.utils.rnn import PackedSequence


def num_samples(batch: Any, planned: int | None = None) -> int:
    """The number of samples in a batch; 0 if nothing tells it.

    planned: how many samples the loader has put together; None if that is unknown. It counts wherever the batch can
    have as many: in a list, or along the first or second dimension of a tensor (recurrent networks have time first).
    Otherwise, as where `collate_fn` leaves some out, it is the length of the batch's first tensor.
    """
    if planned is None:
        return _length(batch)
    has_counts = False
    for count in _counts(batch):
        if count == planned:
            return planned
        has_counts = True
    return _length(batch) if has_counts else planned


def to_device(batch: Any, device: device) -> Any:
    """Moves the tensors in `batch` to `device`, also from nested lists, tuples, dictionaries and dataclasses."""
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        moved = copy.copy(batch)  # not made anew: a defaultdict takes other arguments
        for key, value in batch.items():
            moved[key] = to_device(value, device)
        return moved
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    if _is_dataclass(batch):
        moved = copy.copy(batch)
        for name in _names(batch):
            object.__setattr__(moved, name, to_device(getattr(batch, name), device))  # it may be frozen
        return moved
    return batch


def _length(batch: Any) -> int:
    """The length of the first tensor; of a PackedSequence, its number of sequences."""
    if isinstance(batch, PackedSequence):
        return int(batch.batch_sizes[0])
    if isinstance(batch, Tensor):
        return len(batch) if batch.dim() else 1
    return next((size for part in _parts(batch) if (size := _length(part))), 0)


def _counts(batch: Any) -> Iterator[int]:
    """Every number of samples that the batch may have by its form; first the most usual one."""
    if isinstance(batch, PackedSequence):
        yield int(batch.batch_sizes[0])  # on the CPU, always
    elif isinstance(batch, Tensor):
        yield from batch.shape[:2]
    else:
        if isinstance(batch, list | tuple):
            yield len(batch)
        for part in _parts(batch):
            yield from _counts(part)


def _parts(batch: Any) -> list[Any]:
    if isinstance(batch, dict):
        return list(batch.values())
    if isinstance(batch, list | tuple):
        return list(batch)
    return [getattr(batch, name) for name in _names(batch)] if _is_dataclass(batch) else []


def _is_dataclass(batch: Any) -> bool:
    return is_dataclass(batch) and not isinstance(batch, type)


def _names(batch: Any) -> list[str]:
    return [field.name for field in fields(batch) if hasattr(batch, field.name)]
