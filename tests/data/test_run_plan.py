"""The steps of a run, as far as they are known before it."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from modules.config.ConceptConfig import ConceptConfig
from modules.data import RunPlan as module
from modules.data.buckets import assign_buckets
from modules.data.concepts import scan
from modules.data.RunPlan import RunPlan

SIZES = ((32, 32),) * 5 + ((48, 32),) * 3 + ((32, 48),) * 3


def test_the_expected_passes_are_those_of_the_steps_that_are_left(picture_folder, monkeypatch):
    dataset = scan([ConceptConfig(path=str(picture_folder(SIZES)))])
    buckets = assign_buckets(dataset.widths, dataset.heights, 32, 8, 2.0, True)
    plan = RunPlan(dataset, buckets, (), seed=1, global_batch=4)
    steps = list(islice(plan.steps(2, 1, 3, 4, 1), 20))
    batches = [batch for step in steps for batch in step.micro_batches]
    counts = Counter((len(batch.samples), batch.bucket) for batch in batches if batch.real)
    assert sum(counts.values()) < len(batches)  # in some steps, one of four ranks has no sample
    assert plan.expected_passes(2, 1, 20, 3, 4, 1) == counts
    monkeypatch.setattr(module, "STEPS_LOOKED_AT", 20)
    assert plan.expected_passes(2, 1, 2000, 3, 4, 1) == {
        kind: pytest.approx(100 * count) for kind, count in counts.items()
    }


def test_where_ranks_make_the_same_passes_samples_that_are_apart_share_none(picture_folder):
    dataset = scan([ConceptConfig(path=str(picture_folder(SIZES)))])
    buckets = assign_buckets(dataset.widths, dataset.heights, 32, 8, 2.0, True)
    apart = [number % 2 for number in range(len(SIZES))]
    plan = RunPlan(dataset, buckets, (), seed=1, global_batch=8, apart=apart)
    for same_passes in (False, True):
        ranks = [list(islice(plan.steps(0, 0, rank, 2, 1, same_passes), 10)) for rank in range(2)]
        for steps in zip(*ranks, strict=True):
            batches = [batch for step in steps for batch in step.micro_batches]
            numbers = [batch.samples[:, 0] for batch in batches]
            assert all(set(buckets.index[own]) == {batch.bucket} for own, batch in zip(numbers, batches, strict=True))
            if same_passes:
                assert all(len({apart[sample] for sample in own}) == 1 for own in numbers)
            most = max(len(step.micro_batches) for step in steps)
            assert [step.num_passes for step in steps] == [most if same_passes else 0] * 2
