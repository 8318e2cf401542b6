"""Plans which samples of a DataLoader each rank gets in each optimizer step of an epoch."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader

from modules.data.draws import torch_seed
from modules.engine.Accumulation import Accumulation

MAX_SAMPLES = 2**31  # per epoch; a sampler that yields more is considered infinite


class Key(NamedTuple):
    """A sample of an epoch. position: its index in the epoch's order over all ranks, which seeds its augmentation."""

    epoch: int
    position: int
    index: Any


@dataclass(frozen=True)
class StepSamples:
    """What a rank loads for one optimizer step: the positions of each micro-batch, at least one.

    padding: whether the rank has no samples in this step and loads another rank's only to take part in the collectives.
    """

    micro_batches: list[range]
    padding: bool = False


class Epoch:
    """One rank's part of every step of an epoch. The number of steps is the same on every rank.

    order: the dataset indexes of the epoch. shards: for each round of micro-batches, the positions in `order` that each
    rank gets.
    """

    def __init__(self, number: int, order: list[Any], shards: list[list[range]], rank: int, accumulation: int):
        self._number = number
        self._order = order
        self._shards = shards
        self._rank = rank
        self._accumulation = accumulation

    def __len__(self) -> int:
        return -(-len(self._shards) // self._accumulation)

    @property
    def num_batches(self) -> int:
        """Of each rank, in all steps."""
        return len(self._shards)

    def __getitem__(self, step: int) -> StepSamples:
        if step >= len(self):
            raise IndexError(step)
        shards = self._shards[step * self._accumulation : (step + 1) * self._accumulation]
        own = [shard[self._rank] for shard in shards if shard[self._rank]]
        if own:
            return StepSamples(own)
        other = next(positions for shard in shards for positions in shard if positions)
        return StepSamples([other[:1]], padding=True)

    def indexes(self, positions: range) -> list[Any]:
        """The dataset's indexes of these samples."""
        return [self._order[position] for position in positions]

    def keys(self, positions: range, rank: int = 0, num_ranks: int = 1) -> list[Key]:
        """The same with what seeds them.

        rank, num_ranks: if the epoch is that of one of several ranks, whose samples take turns.
        """
        return [Key(self._number, place * num_ranks + rank, self._order[place]) for place in positions]


class EpochPlan:
    """Splits the samples of `loader` into steps over `world_size` ranks.

    Each rank loads batches of the loader's batch size, so N ranks with batches of b samples take the same samples in
    each step as one rank with batches of N*b. Batches from a custom batch sampler are not divided: rank r of N takes
    batches r, r + N, r + 2N ...
    """

    def __init__(self, loader: DataLoader, rank: int, world_size: int, accumulation: Accumulation, seed: int):
        self._loader = loader
        self._rank = rank
        self._world_size = world_size
        self._accumulation = accumulation
        self._seed = seed

    def epoch(self, epoch: int) -> Epoch:
        """The steps of `epoch` (from 0)."""
        loader, accumulation = self._loader, self._accumulation.in_epoch(epoch)
        sampler = loader.batch_sampler
        if type(sampler) is not BatchSampler:  # a subclass may form other batches
            entries = self._drawn(loader.sampler if sampler is None else sampler, epoch)
            batches = [[index] for index in entries] if sampler is None else list(map(list, entries))
            first = list(accumulate(map(len, batches), initial=0))
            ranges = [range(*pair) for pair in pairwise(first)]
            rounds = [ranges[i : i + self._world_size] for i in range(0, len(ranges), self._world_size)]
            order = [index for batch in batches for index in batch]
            shards = [[*group, *([range(0)] * (self._world_size - len(group)))] for group in rounds]
            return Epoch(epoch, order, shards, self._rank, accumulation)
        order = self._drawn(sampler.sampler, epoch)
        size = sampler.batch_size * self._world_size
        end = len(order) // size * size if sampler.drop_last else len(order)
        shards = [self._cut(range(first, min(first + size, end))) for first in range(0, end, size)]
        return Epoch(epoch, order, shards, self._rank, accumulation)

    def _cut(self, positions: range) -> list[range]:
        """The part of each rank; their sizes differ by at most one."""
        count, ranks = len(positions), self._world_size
        return [positions[count * rank // ranks : count * (rank + 1) // ranks] for rank in range(ranks)]

    def _drawn(self, sampler: Iterable[Any], epoch: int) -> list[Any]:
        """What `sampler` yields in `epoch`; the same on every rank and after a resume."""
        with seeded(self._seed, epoch, "order"):
            generator = getattr(sampler, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(torch_seed(self._seed, epoch, "order"))
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            drawn = []
            for entry in sampler:
                drawn.append(entry)
                if len(drawn) > MAX_SAMPLES:
                    raise ValueError("The sampler of the loader never ends: limit its number of samples per epoch.")
        return drawn


class PrivateRandomState:
    """A separate state of the global random generators of torch (CPU), NumPy and Python, seeded from `parts`.

    Inside `with`, the generators use this state, which persists from one `with` block to the next.
    """

    def __init__(self, *parts: int | str):
        with seeded(*parts):
            self._own = _states()
        self._outer = self._own

    def __enter__(self) -> None:
        self._outer = _states()
        _set_states(self._own)

    def __exit__(self, *error: object) -> None:
        self._own = _states()
        _set_states(self._outer)


@contextmanager
def seeded(*parts: int | str) -> Iterator[None]:
    """Inside, the generators of torch (CPU), NumPy and Python are seeded from `parts`; restores them afterwards."""
    before = _states()
    try:
        seed_generators(*parts)
        yield
    finally:
        _set_states(before)


def seed_generators(*parts: int | str) -> None:
    """Seeds the generators of torch (CPU), NumPy and Python from `parts`."""
    seed = torch_seed(*parts)
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)


def _states() -> tuple[Any, Any, Any]:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _set_states(states: tuple[Any, Any, Any]) -> None:
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
