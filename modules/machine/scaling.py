"""Predict the time of a training step on several GPUs from its time on one, the bytes exchanged and the links.

The batch per GPU stays the same ("weak scaling"). Computation and exchange are two queues that wait for each other as
DDP's buckets and FSDP's blocks do; within a queue, one thing happens after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

BUCKET_BYTES = 25 * 2**20  # of DDP, the default of ddp_bucket_size_mb

Seconds = Callable[[float], float]
"""Bytes of the full tensor -> seconds of a collective."""


@dataclass(frozen=True)
class Work:
    """A training step on one GPU.

    seconds: of computing, backward_share of them in the backward pass. gradient_bytes: of all trained weights, as they
    are exchanged. weight_bytes: of all weights that FSDP divides, as they are gathered. num_blocks: of equal size,
    which FSDP gathers one at a time.
    """

    seconds: float
    gradient_bytes: float
    weight_bytes: float
    num_blocks: int
    backward_share: float = 2 / 3


@dataclass(frozen=True)
class Fabric:
    """How long collectives over all ranks take. overlaps: whether the ranks compute meanwhile."""

    all_reduce: Seconds
    all_gather: Seconds
    reduce_scatter: Seconds
    overlaps: bool = True


def linked(num_ranks: int, bytes_per_second: float, hop_seconds: float) -> Fabric:
    """Collectives on a ring of ranks, each of which sends to the next one; for an all-reduce also on a tree, if that is
    faster, as it is for small tensors on many ranks.

    bytes_per_second: of the slowest link, in one direction. hop_seconds: until a message arrives, on average.
    Sources: Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations"; Sanders,
    Speck & Traff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan".
    """
    levels = math.ceil(math.log2(num_ranks))

    def ring(num_bytes: float) -> float:
        return (num_ranks - 1) * (num_bytes / num_ranks / bytes_per_second + hop_seconds)

    def all_reduce(num_bytes: float) -> float:
        tree = num_bytes / bytes_per_second + levels * hop_seconds
        return 2 * min(ring(num_bytes), tree)

    return Fabric(all_reduce, ring, ring)


def ddp_seconds(work: Work, fabric: Fabric, bucket_bytes: float = BUCKET_BYTES) -> float:
    """A step of DDP: a bucket is exchanged from when the backward pass has its gradients."""
    count = max(1, round(work.gradient_bytes / bucket_bytes))
    backward = work.seconds * work.backward_share
    begin = work.seconds - backward
    each = fabric.all_reduce(work.gradient_bytes / count)
    if not fabric.overlaps:
        return work.seconds + count * each
    done = begin
    for bucket in range(1, count + 1):
        done = max(done, begin + backward * bucket / count) + each
    return done


def fsdp_seconds(work: Work, fabric: Fabric) -> float:
    """A step of FSDP: blocks are gathered for each pass, one ahead of the computation; gradients of a block are
    exchanged after its backward pass."""
    count = work.num_blocks
    gather = fabric.all_gather(work.weight_bytes / count)
    scatter = fabric.reduce_scatter(work.gradient_bytes / count)
    backward = work.seconds * work.backward_share / count
    forward = work.seconds / count - backward
    if not fabric.overlaps:
        return work.seconds + count * (2 * gather + scatter)
    computed = exchanged = 0.0
    for seconds, sends in ((forward, 0.0), (backward, scatter)):
        gathered = exchanged = max(exchanged, computed) + gather
        for block in range(count):
            began = max(computed, gathered)
            if block < count - 1:  # the next one, while this one computes
                gathered = exchanged = max(exchanged, began) + gather
            computed = began + seconds
            if sends:
                exchanged = max(exchanged, computed) + sends
    return max(computed, exchanged)


def efficiency(step: Callable[[Work, Fabric], float], work: Work, fabric: Fabric) -> float:
    """The share of the ideal throughput, which is proportional to the number of GPUs."""
    return work.seconds / step(work, fabric)


def measured_seconds(fixed_seconds: float, seconds_per_byte: float) -> Seconds:
    """A collective as measured: so many seconds, and some for each byte."""
    return partial(_linear, fixed_seconds, seconds_per_byte)


def _linear(fixed_seconds: float, seconds_per_byte: float, num_bytes: float) -> float:
    return fixed_seconds + seconds_per_byte * num_bytes
