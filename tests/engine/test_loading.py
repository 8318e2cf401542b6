"""Loaders split over ranks: every sample once, the same steps on any number of ranks, exact resume."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from modules.config.errors import UserError
from modules.distributed.Runtime import Runtime
from modules.engine.Accumulation import Accumulation
from modules.engine.loading import step_source
from tests.support.engine_data import Augmented, Stream

NUMBERS = TensorDataset(torch.arange(23))


class RankOf(Runtime):
    """One of several simulated ranks; `sizes` is the result of their gather."""

    def __init__(self, rank: int, world_size: int, sizes: list[int] | None = None):
        super().__init__(torch.device("cpu"))
        self.rank, self.world_size, self._sizes = rank, world_size, sizes

    def gather(self, value, why):
        return self._sizes or [value] * self.world_size


def loaded(make_loader, world_size: int, epoch: int = 0, first: int = 0, accumulation: int = 1, seed: int = 1):
    """The steps of each rank."""
    batches = Accumulation.of(accumulation)
    return [
        list(step_source(make_loader(), RankOf(rank, world_size), batches, seed).steps(epoch, first))
        for rank in range(world_size)
    ]


def samples(steps) -> list[list[float]]:
    """The samples of each step over all ranks, sorted."""
    return [
        sorted(
            value
            for step in of_ranks
            for batch in step.batches
            if not step.padding
            for value in batch[0].flatten().tolist()
        )
        for of_ranks in zip(*steps, strict=True)
    ]


SAMPLERS = {
    "in order": lambda: None,
    "random": lambda: RandomSampler(NUMBERS),
    "random with a generator": lambda: RandomSampler(NUMBERS, generator=torch.Generator().manual_seed(3)),
    "with replacement": lambda: RandomSampler(NUMBERS, replacement=True, num_samples=30),
    "weighted": lambda: WeightedRandomSampler([1.0] * 12 + [3.0] * 11, 25),
    "subset": lambda: SubsetRandomSampler(range(4, 21)),
}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_steps_have_the_same_samples_on_any_number_of_ranks(sampler, accumulation, drop_last):
    def of(batch_size):
        options = {"batch_size": batch_size, "drop_last": drop_last}
        return lambda: DataLoader(NUMBERS, sampler=SAMPLERS[sampler](), **options)

    for epoch in range(2):
        alone = samples(loaded(of(12), 1, epoch, accumulation=accumulation))
        assert samples(loaded(of(6), 2, epoch, accumulation=accumulation)) == alone
        assert samples(loaded(of(4), 3, epoch, accumulation=accumulation)) == alone
        assert samples(loaded(of(3), 4, epoch, accumulation=accumulation)) == alone


def test_every_sample_comes_once_per_epoch_in_a_new_order():
    def loader():
        return DataLoader(NUMBERS, batch_size=4, shuffle=True)

    orders = [samples(loaded(loader, 2, epoch)) for epoch in range(2)]
    for order in orders:
        assert sorted(chain(*order)) == list(range(23))
    assert orders[0] != orders[1]
    assert orders[0] != samples(loaded(loader, 2, 0, seed=2))
    assert orders[0] == samples(loaded(loader, 2, 0))


def test_a_rank_without_samples_gets_padding():
    steps = loaded(lambda: DataLoader(TensorDataset(torch.arange(9)), batch_size=2), 4)
    assert [[step.padding for step in own] for own in steps] == [[False, True]] * 3 + [[False, False]]
    assert all(len(own[1].batches) == 1 for own in steps)


def test_batches_of_a_custom_batch_sampler_are_not_divided():
    class Pairs:
        """Batches of one, two and three samples."""

        def __iter__(self):
            return iter([[0], [1, 2], [3, 4, 5], [6], [7, 8]])

        def __len__(self):
            return 5

    steps = loaded(lambda: DataLoader(NUMBERS, batch_sampler=Pairs()), 2)
    assert [[step.batches[0][0].tolist() for step in own if not step.padding] for own in steps] == [
        [[0], [3, 4, 5], [7, 8]],
        [[1, 2], [6]],
    ]
    assert [step.padding for step in steps[1]] == [False, False, True]
    plain = loaded(lambda: DataLoader(NUMBERS, batch_sampler=BatchSampler(SequentialSampler(NUMBERS), 4, False)), 2)
    assert samples(plain) == samples(loaded(lambda: DataLoader(NUMBERS, batch_size=4), 2))


def test_unbatched_samples_are_distributed_round_robin():
    batches = [torch.full((n,), float(n)) for n in (3, 1, 2)]
    steps = loaded(lambda: DataLoader(batches, batch_size=None), 2)
    assert [[(step.batches[0].tolist(), step.padding) for step in own] for own in steps] == [
        [([3.0] * 3, False), ([2.0] * 2, False)],
        [([1.0], False), ([2.0] * 2, True)],
    ]


@pytest.mark.parametrize("make", [Augmented, Stream], ids=["indexed", "stream"])
@pytest.mark.parametrize("workers", [0, 2])
def test_augmentation_is_the_same_on_any_number_of_ranks_and_after_a_resume(make, workers):
    def of(batch_size):
        return lambda: DataLoader(make(23), batch_size=batch_size, num_workers=workers)

    alone = samples(loaded(of(8), 1, epoch=1))
    assert samples(loaded(of(4), 2, epoch=1)) == alone
    assert samples(loaded(of(8), 1, epoch=1, first=1)) == alone[1:]
    assert samples(loaded(of(8), 1, epoch=0)) != alone


def test_augmentation_does_not_depend_on_the_number_of_workers():
    def of(workers):
        return lambda: DataLoader(Augmented(23), batch_size=8, shuffle=True, num_workers=workers)

    assert samples(loaded(of(0), 1)) == samples(loaded(of(2), 1))


def test_persistent_workers_get_the_epoch():
    def loader():
        options = {"num_workers": 1, "persistent_workers": True}
        return DataLoader(Stream(8), batch_size=4, **options)

    source = step_source(loader(), RankOf(0, 1), Accumulation(), seed=1)
    assert [samples([list(source.steps(epoch))]) for epoch in range(2)] == [
        samples(loaded(loader, 1, epoch)) for epoch in range(2)
    ]


def test_loading_does_not_change_the_global_generators():
    before = torch.get_rng_state()
    loaded(lambda: DataLoader(Augmented(8), batch_size=4, shuffle=True), 1)
    loaded(lambda: DataLoader(Stream(8), batch_size=4), 1)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_distributed_sampler_is_kept_and_gets_the_epoch():
    sampler = DistributedSampler(NUMBERS, num_replicas=2, rank=1, shuffle=True)
    source = step_source(DataLoader(NUMBERS, batch_size=5, sampler=sampler), RankOf(1, 2), Accumulation(), seed=1)
    first, second = (list(chain(*samples([list(source.steps(epoch))]))) for epoch in range(2))
    assert len(first) == 12
    assert first != second


@pytest.mark.parametrize("workers", [0, 2])
def test_augmentation_with_a_distributed_sampler_depends_on_the_seed_and_the_sample_only(workers):
    def steps(rank, ranks, first=0):
        data = Augmented(16)
        sampler = DistributedSampler(data, num_replicas=ranks, rank=rank)
        loader = DataLoader(data, batch_size=4 // ranks, sampler=sampler, num_workers=workers)
        return list(step_source(loader, RankOf(rank, ranks), Accumulation(), seed=1).steps(0, first))

    whole = samples([steps(0, 1)])
    assert samples([steps(0, 1, first=2)]) == whole[2:]
    assert samples([steps(rank, 2) for rank in range(2)]) == whole


def test_a_resume_among_the_padding_of_a_rank_loads_its_last_batch():
    numbers = TensorDataset(torch.arange(6))
    sampler = DistributedSampler(numbers, num_replicas=1, rank=0, shuffle=False)
    loader = DataLoader(numbers, batch_size=2, sampler=sampler)
    (step,) = step_source(loader, RankOf(0, 2, sizes=[3, 5]), Accumulation(), seed=1).steps(0, first=4)
    assert step.padding
    assert step.batches[0][0].tolist() == [4, 5]


def test_ranks_with_fewer_batches_get_padding():
    numbers = TensorDataset(torch.arange(6))
    sampler = DistributedSampler(numbers, num_replicas=1, rank=0, shuffle=False)
    loader = DataLoader(numbers, batch_size=2, sampler=sampler)
    steps = list(step_source(loader, RankOf(0, 2, sizes=[3, 5]), Accumulation(), seed=1).steps(0))
    assert [step.padding for step in steps] == [False] * 3 + [True] * 2
    assert steps[4].batches[0][0].tolist() == [4, 5]


def test_a_rank_without_batches_of_its_own_is_refused_on_every_rank():
    loader = DataLoader(NUMBERS, batch_size=5, sampler=DistributedSampler(NUMBERS, num_replicas=1, rank=0))
    with pytest.raises(UserError, match="The loader of rank 1 yields no batches"):
        list(step_source(loader, RankOf(0, 2, sizes=[5, 0]), Accumulation(), seed=1).steps(0))


def test_batches_of_any_iterable_are_distributed_round_robin():
    batches = [torch.tensor([float(n)]) for n in range(5)]
    steps = loaded(lambda: batches, 2)
    assert [[(step.batches[0].item(), step.padding) for step in own] for own in steps] == [
        [(0, False), (2, False), (4, False)],
        [(1, False), (3, False), (4, True)],
    ]
    assert len(loaded(lambda: iter(batches), 1, first=2)[0]) == 3


def test_an_infinite_sampler_is_refused(monkeypatch):
    monkeypatch.setattr("modules.engine.EpochPlan.MAX_SAMPLES", 100)

    class Endless:
        def __iter__(self):
            return iter(int, 1)

    with pytest.raises(ValueError, match="never ends"):
        loaded(lambda: DataLoader(NUMBERS, sampler=Endless()), 1)
