"""Batch size and learning rate on several ranks."""

from __future__ import annotations

import itertools
import math

import pytest

from modules.config.batch_size import accumulation_steps, describe_scaling, global_batch, learning_rate_factor
from modules.config.OptimizerConfig import OptimizerConfig
from modules.config.TrainConfig import TrainConfig


def config(**values) -> TrainConfig:
    return TrainConfig(**values)


def test_per_device_each_rank_takes_the_batch_in_every_micro_batch():
    assert global_batch(config(batch_size=4, gradient_accumulation_steps=2), 4) == 32


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_globally_it_is_the_same_on_any_number_of_ranks(num_ranks):
    settings = config(batch_size=32, batch_size_mode="global", gradient_accumulation_steps=2)
    assert global_batch(settings, num_ranks) == 32
    assert accumulation_steps(settings, num_ranks, 32) == 2


@pytest.mark.parametrize(("num_ranks", "steps"), [(1, 8), (2, 4), (4, 2), (8, 1), (16, 1)])
def test_a_batch_per_device_is_cut_into_what_fits_whatever_the_ranks(num_ranks, steps):
    # a run of 4 on 4 ranks, twice, goes on with another number
    assert accumulation_steps(config(batch_size=4, gradient_accumulation_steps=2), num_ranks, 32) == steps


def test_no_micro_batch_is_larger_than_the_batch_per_device():
    for batch, num_ranks, share in itertools.product(range(1, 9), range(1, 9), range(1, 20)):
        samples = share * num_ranks
        steps = accumulation_steps(config(batch_size=batch), num_ranks, samples)
        assert math.ceil(share / steps) <= batch
        assert steps == 1 or math.ceil(share / (steps - 1)) > batch  # and there are no more than needed


@pytest.mark.parametrize(("rule", "factor"), [("sqrt", 2.0), ("linear", 4.0), ("none", 1.0)])
def test_the_learning_rate_grows_by_the_rule_where_the_batch_grows(rule, factor):
    assert learning_rate_factor(config(lr_scaling=rule), 4) == factor
    assert learning_rate_factor(config(lr_scaling=rule), 1) == 1.0
    assert learning_rate_factor(config(lr_scaling=rule, batch_size_mode="global"), 4) == 1.0


def test_an_optimizer_that_finds_its_own_step_is_left_alone():
    settings = config(lr_scaling="linear", optimizer=OptimizerConfig(name="prodigy", learning_rate=1.0))
    assert learning_rate_factor(settings, 4) == 1.0
    assert describe_scaling(settings, 4) is None


@pytest.mark.parametrize(
    ("rate", "rule", "num_ranks", "words"),
    [
        (1e-4, "sqrt", 4, "sqrt(4): 1e-4 -> 2e-4"),
        (1e-4, "sqrt", 2, "sqrt(2): 1e-4 -> 1.414e-4"),
        (1e-5, "linear", 8, "8: 1e-5 -> 8e-5"),
        (2.5e-6, "linear", 16, "16: 2.5e-6 -> 4e-5"),
        (0.003, "linear", 4, "4: 3e-3 -> 0.012"),
        (1.0, "sqrt", 4, "sqrt(4): 1 -> 2"),
    ],
)
def test_what_the_rule_does_is_said_in_one_line(rate, rule, num_ranks, words):
    settings = config(lr_scaling=rule, optimizer=OptimizerConfig(learning_rate=rate))
    assert describe_scaling(settings, num_ranks) == f"Scaling learning rate by {words}"


def test_nothing_is_said_where_nothing_changes():
    assert describe_scaling(config(lr_scaling="none"), 4) is None
    assert describe_scaling(config(lr_scaling="sqrt"), 1) is None
