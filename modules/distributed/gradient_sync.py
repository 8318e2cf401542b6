"""Gradients exchanged in fewer bits, for slow links."""

# no annotations from __future__: DDP compares those of a hook with the types themselves, not with their names
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def compress_gradients(module: "DistributedDataParallel", precision: str) -> None:
    """Lets `module` exchange its gradients in `precision`: "fp32" is as they are, "bf16" or "fp16" half of the bytes.

    torch has hooks that do the same, but its bf16 one refuses gloo; and both sum what was divided before, as here, so
    that fp16 does not overflow by the number of ranks.
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
