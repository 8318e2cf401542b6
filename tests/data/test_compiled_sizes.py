"""For how many sizes a run compiles is known from its plan."""

from dataclasses import replace

import pytest

from modules.config.ConceptConfig import ConceptConfig
from modules.config.ModelConfig import ModelConfig
from modules.data.buckets import assign_buckets
from modules.data.compiled_sizes import compiled_sizes
from modules.data.concepts import scan
from modules.data.RunPlan import RunPlan
from modules.families.registry import FAMILIES

FIXED = next(family for family in FAMILIES.values() if family.text.collate == "stack" and family.experts is None)
FEW, MANY = ((32, 32),) * 8, ((32, 32), (48, 32), (32, 48)) * 5


@pytest.fixture
def sizes_of(picture_folder):
    def make(sizes, choice="auto", batch=4, family=FIXED, ranks=1):
        dataset = scan([ConceptConfig(path=str(picture_folder(sizes)))])
        buckets = assign_buckets(dataset.widths, dataset.heights, 32, 8, 2.0, True)
        plan = RunPlan(dataset, buckets, (), seed=1, global_batch=batch)
        return compiled_sizes(ModelConfig(compile_sizes=choice), family, plan, buckets, ranks, 1), buckets

    return make


def test_few_sizes_get_a_graph_each(sizes_of):
    assert sizes_of(FEW)[0] == (False, 1, ())


def test_many_sizes_share_a_graph_that_is_made_for_the_largest(sizes_of):
    sizes, buckets = sizes_of(MANY)
    assert sizes.all_sizes
    assert sizes.num_sizes > 4  # three shapes, and what is left of each at the end of an epoch
    several, *one = sizes.first
    assert len(several.samples) * buckets.costs[several.bucket] == 4 * max(buckets.costs)
    assert [len(batch.samples) for batch in one] in ([], [1])


def test_texts_of_any_length_share_a_graph(sizes_of):
    family = replace(FIXED, text=replace(FIXED.text, collate="group"))
    sizes, _ = sizes_of(FEW, family=family)
    assert (sizes.all_sizes, sizes.num_sizes) == (True, None)


@pytest.mark.parametrize(("choice", "all_sizes"), [("each", False), ("all", True)])
def test_the_setting_decides(choice, all_sizes, sizes_of):
    assert sizes_of(MANY if choice == "each" else FEW, choice)[0].all_sizes == all_sizes
