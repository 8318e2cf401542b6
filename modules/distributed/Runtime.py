"""Everything that differs between one rank and many; on one rank each operation is the identity."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

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


def default_device() -> torch.device:
    """The first GPU, else the CPU."""
    import torch

    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
