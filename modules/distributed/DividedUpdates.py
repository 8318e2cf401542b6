"""Divides the optimizer's work among ranks that each hold the whole model, so that each needs a part of its state.

Rajbhandari et al. 2020, "ZeRO", arXiv 1910.02054 (stage 1). Parameters stay whole, so any optimizer that updates each
of them by itself gives the same result, bit for bit. Gradients are exchanged as without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from modules.session.backups import part_name

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")

BUCKET_BYTES = 250 << 20  # sent at once; it also bounds the memory for copies


class DividedUpdates:
    """Which rank updates which of `params`. gather: Runtime.gather."""

    def __init__(
        self,
        params: Sequence[nn.Parameter],
        rank: int,
        world_size: int,
        gather: Callable[[Any, str], list[Any]],
    ):
        self._rank = rank
        self._world_size = world_size
        self._gather = gather
        self._parts = divide([param.numel() * param.element_size() for param in params], world_size)
        self._params = [[params[index] for index in part] for part in self._parts]
        self._own = set(self._params[rank])
        self._device = params[0].device if params else torch.device("cpu")

    def is_own(self, param: Tensor) -> bool:
        """Whether this rank updates `param`."""
        return param in self._own

    def clear_other_gradients(self) -> None:
        """Before an update: optimizers skip parameters without a gradient, and create no state for them."""
        for part in self._params:
            for param in part:
                if param not in self._own:
                    param.grad = None

    @torch.no_grad()
    def exchange(self) -> None:
        """After an update: sends the own parameters to all ranks and receives theirs. A collective."""
        group = dist.group.WORLD
        assert group is not None  # the ranks have joined
        for rank, part in enumerate(self._params):
            if part:
                dist._broadcast_coalesced(group, [param.detach() for param in part], BUCKET_BYTES, rank)

    def parts(self, name: str, tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """As Runtime.parts, of tensors that each rank has for the parameters that it updates."""
        return {part_name(name, self._rank, self._world_size): tensors}

    def full_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """As Runtime.full_tensors, of tensors that each rank has for the parameters that it updates; on the CPU."""
        own = [[name, list(value.shape), str(value.dtype)[6:]] for name, value in tensors.items()]
        full: dict[str, Tensor] = {}
        for rank, described in enumerate(self._gather(own, "saving")):
            for name, shape, dtype in described:
                value = tensors[name] if rank == self._rank else torch.empty(shape, dtype=getattr(torch, dtype))
                sent = value.detach().to(self._device, copy=True).contiguous()
                dist.broadcast(sent.view(-1).view(torch.uint8), rank)  # not every backend supports every dtype
                if self._rank == 0:
                    full[name] = sent.cpu()
        return full

    def of_own(
        self, names: Mapping[Tensor, str], tensors: Mapping[str, T], data: Mapping[str, Any]
    ) -> tuple[dict[str, T], dict[str, Any]]:
        """What LoopOptimizer.state has returned, without the state of parameters that other ranks update."""
        others = {name for param, name in names.items() if not self.is_own(param)}
        own = {key: value for key, value in tensors.items() if key.rpartition("/")[0] not in others}
        return own, {**data, "state": {name: value for name, value in data["state"].items() if name not in others}}

    def merged(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Plain data by parameter, of all ranks."""
        return {name: value for part in self._gather(dict(values), "backing up") for name, value in part.items()}


def divide(sizes: Sequence[int], count: int) -> list[list[int]]:
    """The indexes of `sizes` in `count` parts of about equal sums: the largest first, each to the smallest part."""
    parts: list[list[int]] = [[] for _ in range(count)]
    sums = [0] * count
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        smallest = sums.index(min(sums))
        parts[smallest].append(index)
        sums[smallest] += sizes[index]
    return [sorted(part) for part in parts]
