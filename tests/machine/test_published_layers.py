"""The listed layers of the published models against the counts of their adapters, and how their numbers are written."""

import math

import pytest

from modules.config.families import load_families
from modules.config.LoraConfig import TARGETS
from modules.machine.architectures import load_architectures
from modules.machine.published_layers import published_layers, read_numbers, targeted_layers, write_numbers

FAMILIES = load_families()
MODELS = {name: family for family in FAMILIES.values() for name in (family.name, *family.variants)}


def rank_one(model, component, targets):
    shapes = published_layers(model, component)
    chosen = targeted_layers(model, component, targets, shapes)
    return sum(shapes[name][0] + math.prod(shapes[name][1:]) for name in chosen)


def test_adapters_on_the_listed_layers_have_the_weights_that_are_counted_in_the_models():
    for model, counted in load_architectures().items():
        family = MODELS[model]
        found = {targets: len(family.denoisers) * rank_one(model, family.denoisers[0], targets) for targets in TARGETS}
        # experts' gates are no linear layers, although their weights are matrices
        assert found == pytest.approx(counted.adapter, rel=0.015), model
        for name, expected in zip(family.text_encoders, counted.text_adapters, strict=True):
            assert not expected or rank_one(model, name, "attention") == expected, (model, name)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([()], ""),
        ([(3,)], "3"),
        ([(number,) for number in range(12)], "0-11"),
        ([(1, 0), (1, 1), (2, 0), (2, 1), (4, 0)], "1-2.0-1,4.0"),
        ([(0, 0), (1, 0), (1, 1)], "0.0,1.0-1"),
    ],
)
def test_the_numbers_in_paths_are_written_as_ranges(numbers, text):
    assert write_numbers(numbers) == text
    assert sorted(read_numbers(text)) == numbers
