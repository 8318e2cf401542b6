"""How gradients are exchanged: in lower precision for slow links, and many in one all-reduce."""

# no `from __future__ import annotations`: DDP compares the annotations of a hook with the types themselves
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def compress_gradients(module: "DistributedDataParallel", precision: str) -> None:
    """Makes `module` exchange its gradients in `precision`: "fp32" leaves them unchanged, "bf16" and "fp16" halve them.

    torch has equivalent hooks, but its bf16 hook does not support gloo. Like torch's, this one divides before it sums,
    so that fp16 does not overflow with many ranks.
    """
    if precision in DTYPES:
        module.register_comm_hook(DTYPES[precision], _reduce_in)


def _reduce_in(dtype: torch.dtype, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    gradients = bucket.buffer()
    compressed = gradients.div(dist.get_world_size()).to(dtype)
    work = dist.all_reduce(compressed, async_op=True)

    def decompress(future: torch.futures.Future) -> torch.Tensor:
        return gradients.copy_(future.value()[0])

    return work.get_future().then(decompress)


def in_buckets(tensors: Sequence[torch.Tensor], most_bytes: int) -> Iterator[list[torch.Tensor]]:
    """`tensors` in order, in lists of one dtype and at most `most_bytes`, or with a single larger tensor."""
    bucket: list[torch.Tensor] = []
    num_bytes = 0
    for tensor in tensors:
        if bucket and (tensor.dtype != bucket[0].dtype or num_bytes + tensor.nbytes > most_bytes):
            yield bucket
            bucket, num_bytes = [], 0
        bucket.append(tensor)
        num_bytes += tensor.nbytes
    if bucket:
        yield bucket
