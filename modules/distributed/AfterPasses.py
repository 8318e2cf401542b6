"""Exchanges the gradients of a step after its passes, which then communicate with no other rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from modules.distributed.gradient_sync import DTYPES, in_buckets

if TYPE_CHECKING:
    from torch import Tensor, nn


class AfterPasses:
    """Those of `params` that require a gradient now; rank 0 gives them their values.

    precision: "fp32", "bf16" or "fp16", in which they are exchanged; the first keeps their own.
    bucket_bytes: of one all-reduce. host_group: makes the group for tensors on the CPU if passes may leave parameters
    without a gradient; None: all get one in each step.
    """

    def __init__(
        self,
        params: Sequence[nn.Parameter],
        precision: str,
        bucket_bytes: int,
        host_group: Callable[[], dist.ProcessGroup] | None,
    ):
        self._params = [param for param in params if param.requires_grad]
        self._dtype = DTYPES.get(precision)
        self._bucket_bytes = bucket_bytes
        self._host_group = host_group
        for bucket in in_buckets([param.detach() for param in self._params], bucket_bytes):
            flat = _flat(bucket)
            dist.broadcast(flat, 0)
            _unpack(flat, bucket)

    @torch.no_grad()
    def exchange(self) -> None:
        """Averages the gradients over ranks, in place, as DDP does. All ranks must call it after the passes of a step.

        A parameter that got a gradient on some ranks only gets one on all.
        """
        there = [param.grad is not None for param in self._params]
        if self._host_group:
            there = self._on_any_rank(there)
        gradients = []
        for param, is_there in zip(self._params, there, strict=True):
            if param.grad is None and (is_there or not self._host_group):
                param.grad = torch.zeros_like(param)  # else this rank would exchange fewer than the others
            if param.grad is not None:
                gradients.append(param.grad)
        for bucket in in_buckets(gradients, self._bucket_bytes):
            flat = _flat(bucket).div_(dist.get_world_size())  # first, so that the sum does not overflow in fp16
            if self._dtype:
                flat = flat.to(self._dtype)
            dist.all_reduce(flat)
            _unpack(flat, bucket)

    def _on_any_rank(self, there: list[bool]) -> list[bool]:
        assert self._host_group is not None
        mask = torch.tensor(there, dtype=torch.uint8)
        dist.all_reduce(mask, dist.ReduceOp.MAX, self._host_group())
        return mask.bool().tolist()


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _unpack(flat: Tensor, targets: Sequence[Tensor]) -> None:
    parts = flat.split([target.numel() for target in targets])
    torch._foreach_copy_(list(targets), [part.view(target.shape) for part, target in zip(parts, targets, strict=True)])
