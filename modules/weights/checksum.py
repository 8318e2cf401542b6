"""A short digest of many tensors, to compare what ranks hold."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """Of names, types, shapes and the sum of each tensor's bits as integers: 16 hex digits.

    Computed where the tensors are, at the speed of their memory, with one wait for each device. Which device holds a
    tensor does not count. It finds other or damaged values; values that only swapped places within a tensor it does
    not.
    """
    import torch

    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    sums = {
        name: value.detach().view(integers[value.element_size()]).sum(dtype=torch.int64)
        for name, value in tensors.items()
    }
    totals: dict[str, int] = {}
    for device in {value.device for value in sums.values()}:
        here = [name for name, value in sums.items() if value.device == device]
        totals.update(zip(here, torch.stack([sums[name] for name in here]).tolist(), strict=True))
    facts = [f"{name} {value.dtype} {tuple(value.shape)} {totals[name]}" for name, value in tensors.items()]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
