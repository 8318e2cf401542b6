"""Splits data loaders over ranks, with the same samples in the same steps on any number of ranks.

Random numbers drawn while a sample is loaded (augmentation) depend on the seed, the epoch and the sample's position in
the epoch, but not on the rank, the number of workers or the step of a resume. They are seeded per batch for datasets
with `__getitems__`, and per worker for iterable datasets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from modules.config.errors import UserError
from modules.data.draws import torch_seed
from modules.distributed.Runtime import Runtime
from modules.engine.Accumulation import Accumulation
from modules.engine.EpochPlan import Epoch, EpochPlan, Key, PrivateRandomState, seed_generators, seeded
from modules.engine.sent_by_value import SentFunction, by_value, from_value


@dataclass(frozen=True)
class LoadedStep:
    """The batches of a rank in one optimizer step.

    counts: the samples that were put together for each batch; empty if they are unknown.
    padding: whether the batches only serve to take part in the collectives.
    """

    batches: list[Any]
    counts: list[int] = field(default_factory=list)
    padding: bool = False

    def counted(self) -> list[tuple[Any, int | None]]:
        """Each batch with its count; None if that is unknown."""
        if not self.counts:
            return [(batch, None) for batch in self.batches]
        return list(zip(self.batches, self.counts, strict=True))


class StepSource(Protocol):
    """Yields the steps of an epoch."""

    def steps(self, epoch: int, first: int = 0) -> Iterator[LoadedStep]:
        """This rank's steps of `epoch` (from 0), beginning with step `first`; the same number on each rank."""

    def num_batches(self) -> int | None:
        """Of each rank in an epoch; None if unknown before its end."""


def step_source(loader: Iterable[Any], runtime: Runtime, accumulation: Accumulation, seed: int) -> StepSource:
    """The steps of `loader`, whose batch size is per rank.

    A DataLoader is split over the ranks, unless it has a DistributedSampler, which already does so. From any other
    iterable of batches, rank r of N takes batches r, r + N, r + 2N ...
    """
    if not isinstance(loader, DataLoader):
        return IterableSource(loader, runtime, accumulation)
    if has_distributed_sampler(loader):
        return PreShardedSource(loader, runtime, accumulation, seed)
    if isinstance(loader.dataset, IterableDataset):
        return IterableDatasetSource(loader, runtime, accumulation, seed)
    return MapDatasetSource(loader, runtime, accumulation, seed)


def mark_last(steps: Iterator[LoadedStep]) -> Iterator[tuple[LoadedStep, bool]]:
    """Each step with whether it is the last one."""
    step = next(steps, None)
    while step is not None:
        following = next(steps, None)
        yield step, following is None
        step = following


def has_distributed_sampler(loader: DataLoader) -> bool:
    """Whether the loader has a DistributedSampler and so is already split over the ranks."""
    inner = getattr(loader.batch_sampler, "sampler", None)
    return any(isinstance(sampler, DistributedSampler) for sampler in (loader.sampler, loader.batch_sampler, inner))


class MapDatasetSource:
    """The steps of a DataLoader over a map-style dataset.

    is_split: whether the loader has the samples of this rank only.
    """

    def __init__(
        self, loader: DataLoader, runtime: Runtime, accumulation: Accumulation, seed: int, is_split: bool = False
    ):
        here, alone = (runtime.rank, runtime.world_size), (0, 1)
        self._plan = EpochPlan(loader, *(alone if is_split else here), accumulation, seed)
        draws = not _draws_nothing(loader.dataset)
        self._keys = _EpochKeys(*(here if is_split else alone), draws)
        # otherwise each item of the dataset is a batch already
        self._batches_samples = loader.batch_size is not None or loader.batch_sampler is not None
        self._loader = _rebuilt(
            loader,
            _SeededDataset(loader.dataset, seed) if draws else loader.dataset,
            **(
                {"batch_sampler": self._keys}
                if self._batches_samples
                else {"batch_size": None, "sampler": _FlatKeys(self._keys)}
            ),
        )
        self._seed = seed
        self._num_batches: int | None = None

    def steps(self, epoch: int, first: int = 0) -> Iterator[LoadedStep]:
        planned = self._plan.epoch(epoch)
        self._num_batches = planned.num_batches
        self._keys.epoch, self._keys.first = planned, first
        self._loader.generator.manual_seed(torch_seed(self._seed, epoch, "workers"))
        batches = iter(self._loader)
        for number in range(first, len(planned)):
            step = planned[number]
            counts = list(map(len, step.micro_batches)) if self._batches_samples else []
            yield LoadedStep(list(islice(batches, len(step.micro_batches))), counts, step.padding)

    def num_batches(self) -> int | None:
        if self._num_batches is None:
            self._num_batches = self._plan.epoch(0).num_batches
        return self._num_batches


class IterableDatasetSource:
    """The steps of a DataLoader over an IterableDataset: every rank reads all samples and keeps its part.

    With several workers, the dataset must split itself with `get_worker_info()`, as usual.
    """

    def __init__(self, loader: DataLoader, runtime: Runtime, accumulation: Accumulation, seed: int):
        self._stream = _ShardedStream(loader, runtime.rank, runtime.world_size, seed)
        self._loader = _rebuilt(loader, self._stream, batch_size=None, collate_fn=_identity)
        self._batches_samples = loader.batch_size is not None
        self._accumulation = accumulation
        self._seed = seed

    def steps(self, epoch: int, first: int = 0) -> Iterator[LoadedStep]:
        self._stream.epoch.fill_(epoch)
        self._loader.generator.manual_seed(torch_seed(self._seed, epoch, "workers"))
        parts, accumulation = iter(self._loader), self._accumulation.in_epoch(epoch)
        for _ in range(first * accumulation):  # an iterable dataset can only be read from its start
            next(parts, None)
        while group := list(islice(parts, accumulation)):
            own = [(batch, count) for batch, count in group if count] or group[:1]
            counts = [count for _, count in own] if self._batches_samples else []
            yield LoadedStep([batch for batch, _ in own], counts, padding=not own[0][1])

    def num_batches(self) -> int | None:
        return None


class PreShardedSource:
    """The steps of a loader that is already split over the ranks, possibly unevenly."""

    def __init__(self, loader: DataLoader, runtime: Runtime, accumulation: Accumulation, seed: int):
        self._own = MapDatasetSource(loader, runtime, accumulation, seed, is_split=True)
        self._loader = loader
        self._runtime = runtime
        self._accumulation = accumulation

    def steps(self, epoch: int, first: int = 0) -> Iterator[LoadedStep]:
        lengths = self._runtime.gather(len(self._loader), "counting batches")
        if not min(lengths):
            rank = lengths.index(0)
            raise UserError(f"The loader of rank {rank} yields no batches: give every rank at least one.")
        count, own = (self._accumulation.steps(batches, epoch) for batches in (max(lengths), len(self._loader)))
        number = start = min(first, own - 1)  # at least the last batch is loaded, which also pads
        step = LoadedStep([])
        for number, step in enumerate(islice(self._own.steps(epoch, start), count - start), start):
            if number >= first:
                yield step
        for _ in range(max(first, number + 1), count):
            yield LoadedStep(step.batches[-1:], step.counts[-1:], padding=True)

    def num_batches(self) -> int:
        return len(self._loader)


class IterableSource:
    """The steps of any iterable of batches."""

    def __init__(self, batches: Iterable[Any], runtime: Runtime, accumulation: Accumulation):
        self._batches = batches
        self._runtime = runtime
        self._accumulation = accumulation

    def steps(self, epoch: int, first: int = 0) -> Iterator[LoadedStep]:
        rank, ranks = self._runtime.rank, self._runtime.world_size
        batches, count = iter(self._batches), ranks * self._accumulation.in_epoch(epoch)
        for _ in range(first):
            list(islice(batches, count))
        while group := list(islice(batches, count)):
            own = group[rank::ranks]
            yield LoadedStep(own or [group[0]], padding=not own)

    def num_batches(self) -> int | None:
        if not isinstance(self._batches, Sized):
            return None
        try:
            return -(-len(self._batches) // self._runtime.world_size)
        except TypeError:  # raised by containers of something without a length
            return None


def _rebuilt(loader: DataLoader, dataset: Dataset, **changes: Any) -> DataLoader:
    """A loader over `dataset` with the options of `loader` and the given changes."""
    options = {
        "num_workers": loader.num_workers,
        "collate_fn": _sent(loader.collate_fn),
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": _sent(loader.worker_init_fn),
        "multiprocessing_context": loader.multiprocessing_context,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
        "generator": torch.Generator(),  # the default would draw from the program's global generator
    }
    return DataLoader(dataset, **(options | changes))


def _sent(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    return None if function is None else SentFunction(function)


def _identity(batch: Any) -> Any:
    return batch


class _EpochKeys:
    """A batch sampler over the keys of the current epoch.

    rank, num_ranks: if the keys are of one of several ranks, whose samples take turns, as DistributedSampler has them.
    draws: whether the dataset is seeded for each sample, rather than only looked up by indexes.
    """

    def __init__(self, rank: int = 0, num_ranks: int = 1, draws: bool = True) -> None:
        self._rank, self._num_ranks = rank, num_ranks
        self._draws = draws
        self.epoch: Epoch | None = None
        self.first = 0

    def __iter__(self) -> Iterator[list[Any]]:
        epoch = self.epoch
        assert epoch is not None  # `MapDatasetSource.steps` sets it before the loader asks for keys
        batches = (samples for number in range(self.first, len(epoch)) for samples in epoch[number].micro_batches)
        if not self._draws:
            return map(epoch.indexes, batches)
        return (epoch.keys(positions, self._rank, self._num_ranks) for positions in batches)


class _FlatKeys:
    """A sampler over single keys, for a loader without batching."""

    def __init__(self, keys: _EpochKeys):
        self._keys = keys

    def __iter__(self) -> Iterator[Any]:
        return (key for keys in self._keys for key in keys)


def _draws_nothing(dataset: Dataset) -> bool:
    """Whether it only looks samples up, so that seeding for each would cost more than loading it."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset) is TensorDataset


class _SeededDataset(Dataset):
    """Loads each sample with the random generators seeded for it."""

    def __init__(self, dataset: Dataset, seed: int):
        self._dataset = dataset
        self._seed = seed

    def __reduce__(self) -> tuple[Any, ...]:
        return _seeded_dataset, (by_value(self._dataset), self._seed)

    def __getitem__(self, key: Key) -> Any:
        return self._make([key], lambda: self._dataset[key.index])

    def __getitems__(self, keys: list[Key]) -> list[Any]:
        get_items = getattr(self._dataset, "__getitems__", None)
        if callable(get_items):
            return self._make(keys, lambda: get_items([key.index for key in keys]))
        with seeded(0):
            return [self._seeded_item(key) for key in keys]

    def _seeded_item(self, key: Key) -> Any:
        seed_generators(self._seed, key.epoch, key.position, "sample")
        return self._dataset[key.index]

    def _make(self, keys: list[Key], make: Callable[[], Any]) -> Any:
        with seeded(self._seed, keys[0].epoch, keys[0].position, "sample"):
            return make()


def _seeded_dataset(dataset: bytes, seed: int) -> _SeededDataset:
    return _SeededDataset(from_value(dataset), seed)


class _ShardedStream(IterableDataset):
    """The batches of one rank, each with the number of its samples: 0 if it is only padding."""

    def __init__(self, loader: DataLoader, rank: int, world_size: int, seed: int):
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # shared with persistent workers
        self._dataset = loader.dataset
        self._batch_size = loader.batch_size
        self._collate = loader.collate_fn if loader.batch_size is not None else _first
        self._drop_last = loader.drop_last
        self._rank, self._world_size = rank, world_size
        self._seed = seed

    def __reduce__(self) -> tuple[Any, ...]:
        return _sharded_stream, (by_value(vars(self)),)

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        worker, epoch = get_worker_info(), int(self.epoch)
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(epoch)
        randomness = PrivateRandomState(self._seed, epoch, worker.id if worker else 0, "stream")
        with randomness:
            samples = iter(self._dataset)
        size = (self._batch_size or 1) * self._world_size
        while True:
            with randomness:
                group = list(islice(samples, size))
            if not group or (len(group) < size and self._drop_last):
                return
            first, end = (len(group) * rank // self._world_size for rank in (self._rank, self._rank + 1))
            yield self._collate(group[first:end] or group[:1]), end - first


def _sharded_stream(state: bytes) -> _ShardedStream:
    stream = _ShardedStream.__new__(_ShardedStream)
    vars(stream).update(from_value(state))
    return stream


def _first(samples: list[Any]) -> Any:
    """The collate function of a dataset that yields batches."""
    return samples[0]
