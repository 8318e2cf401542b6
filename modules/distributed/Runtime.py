"""Everything that differs between one rank and many; on one rank each operation is the identity."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from modules.config.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

T = TypeVar("T")


class Runtime:
    """One rank on one device.

    rank counts over all nodes, local_rank on this node. Losses are summed over samples, not averaged, so what a
    backward pass leaves must be multiplied by `gradient_scale` to be the gradient of the sum over all ranks.
    """

    rank = 0
    local_rank = 0
    world_size = 1
    gradient_scale = 1.0

    def __init__(self, device: torch.device):
        if device.type == "cuda":
            import torch

            # with its number: "cuda" and "cuda:0" compare unequal, and modules are asked where they are
            device = torch.device("cuda", device.index or 0)
            torch.cuda.set_device(device)
        self.device = device

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def prepare(self, module: nn.Module) -> nn.Module:
        """The module as training must call it."""
        return module

    @contextlib.contextmanager
    def accumulate(self, last: bool) -> Iterator[None]:
        """Around the forward and backward pass of a micro-batch; gradients are exchanged in the last one only."""
        yield

    def sum(self, values: Tensor) -> Tensor:
        """The sum over ranks, on every rank, on the device."""
        return values

    def broadcast(self, value: T) -> T:
        """Rank 0's value (plain data), on every rank."""
        return value

    def barrier(self, why: str) -> None:
        """Waits for all ranks; `why` stands in the message when one does not come."""

    @contextlib.contextmanager
    def main_first(self, why: str) -> Iterator[None]:
        """The body runs on rank 0, then on the others."""
        yield


def default_device(device_indexes: Sequence[int] = ()) -> torch.device:
    """The first chosen GPU (of all, where none is chosen), else the CPU.

    Raises UserError for a chosen GPU that does not exist.
    """
    import torch

    count = torch.cuda.device_count()
    for index in device_indexes:
        if index >= count:
            there = f"only 0 to {count - 1} exist" if count else "there is no GPU here"
            raise UserError(f"device_indexes {list(device_indexes)}: {there}; choose others, or none for all.")
    return torch.device("cuda", device_indexes[0] if device_indexes else 0) if count else torch.device("cpu")
