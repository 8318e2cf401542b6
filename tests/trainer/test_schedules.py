from __future__ import annotations

import math
import re
from typing import get_args

import diffusers.optimization
import pytest
import torch
import transformers.optimization

from modules.config.schedule_pieces import read_pieces
from modules.config.ScheduleConfig import KEEPS_FINAL_SHARE, ScheduleConfig, ScheduleName
from modules.trainer.schedules import schedule_factor, warmup_steps

NAMES = get_args(ScheduleName)


def shares(total: int, **settings) -> list[float]:
    return [schedule_factor(ScheduleConfig(**settings), step, total) for step in range(total)]


def test_constant_stays_at_one():
    assert shares(5, name="constant") == [1.0] * 5


def test_linear_decays_in_equal_steps_to_its_final_factor():
    assert shares(5, name="linear", final_share=0.5) == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6])


def test_cosine_follows_its_formula():
    expected = [0.1 + 0.9 * (1 + math.cos(math.pi * step / 8)) / 2 for step in range(8)]
    assert shares(8, name="cosine", final_share=0.1) == pytest.approx(expected)


def test_rex_follows_its_formula():
    # eq. of section 3: eta(t) = eta_0 (1 - z) / (1/2 + 1/2 (1 - z)) with z = t / T
    expected = [(1 - step / 8) / (0.5 + 0.5 * (1 - step / 8)) for step in range(8)]
    assert shares(8, name="rex") == pytest.approx(expected)
    assert all(rex >= line for rex, line in zip(shares(8, name="rex"), shares(8, name="linear"), strict=True))


def test_a_larger_d_keeps_rex_high_for_longer():
    # eta(t) = eta_0 (1 - z) / (1 - d + d (1 - z)); OneTrainer's has d = 0.9
    expected = [(1 - step / 8) / (0.1 + 0.9 * (1 - step / 8)) for step in range(8)]
    assert shares(8, name="rex", rex_d=0.9) == pytest.approx(expected)
    assert shares(8, name="rex", rex_d=0.0) == pytest.approx(shares(8, name="linear"))


def test_a_cosine_wave_falls_and_rises_as_often_as_wanted():
    values = shares(16, name="cosine_waves", restarts=2, final_share=0.1)
    expected = [0.1 + 0.9 * (1 + math.cos(2 * math.pi * 2 * step / 16)) / 2 for step in range(16)]
    assert values == pytest.approx(expected)
    assert [values[step] for step in (0, 4, 8, 12)] == pytest.approx([1.0, 0.1, 1.0, 0.1])


@pytest.mark.parametrize("decay", [8, 0.2])
def test_wsd_is_constant_until_its_decay(decay):
    values = shares(40, name="wsd", warmup=5, decay=decay, final_share=0.1)
    assert values[5:33] == [1.0] * 28
    assert values[32:] == pytest.approx(shares(8, name="cosine", final_share=0.1))
    # a decay that is longer than what the warm-up leaves
    assert shares(10, name="wsd", warmup=5, decay=8)[5:] == pytest.approx(shares(5, name="cosine"))


def test_the_final_share_is_the_minimum():
    for name in KEEPS_FINAL_SHARE:
        values = shares(50, name=name, final_share=0.25)
        assert min(values) >= 0.25
        assert max(values) == 1.0


def test_each_cosine_cycle_starts_at_one():
    values = shares(12, name="cosine_restarts", restarts=3)
    assert values[0] == values[4] == values[8] == 1.0
    assert values[:4] == pytest.approx(shares(4, name="cosine"))


def test_a_polynomial_of_power_one_is_linear():
    assert shares(9, name="polynomial", power=1.0) == pytest.approx(shares(9, name="linear"))


@pytest.mark.parametrize(
    ("settings", "function", "options"),
    [
        ({"name": "constant"}, "get_constant_schedule_with_warmup", {}),
        ({"name": "linear"}, "get_linear_schedule_with_warmup", {}),
        ({"name": "cosine"}, "get_cosine_schedule_with_warmup", {}),
        (
            {"name": "cosine_restarts", "restarts": 2},
            "get_cosine_with_hard_restarts_schedule_with_warmup",
            {"num_cycles": 2},
        ),
        (
            {"name": "polynomial", "power": 3.0, "final_share": 0.1},
            "get_polynomial_decay_schedule_with_warmup",
            {"power": 3.0, "lr_end": 0.1},
        ),
        ({"name": "inverse_sqrt"}, "get_inverse_sqrt_schedule", {}),
        (
            {"name": "wsd", "decay": 8, "final_share": 0.1},
            "get_wsd_schedule",
            {"num_decay_steps": 8, "min_lr_ratio": 0.1},
        ),
    ],
    ids=lambda value: value.get("name", "") if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("warmup", [0, 5])
def test_factors_after_the_warm_up_equal_those_of_diffusers(settings, function, options, warmup):
    library = diffusers.optimization if hasattr(diffusers.optimization, function) else transformers.optimization
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    if "constant" not in function and "inverse" not in function:
        options = {**options, "num_training_steps": 40}
    scheduler = getattr(library, function)(optimizer, num_warmup_steps=warmup, **options)
    expected = [scheduler.lr_lambdas[0](step) for step in range(40)]
    # theirs starts at 0, ours at the first step
    assert shares(40, warmup=warmup, **settings)[warmup:] == pytest.approx(expected[warmup:])


@pytest.mark.parametrize("name", NAMES)
def test_the_warm_up_rises_linearly_to_one(name):
    values = shares(20, name=name, warmup=4)
    assert values[:4] == [0.25, 0.5, 0.75, 1.0]
    assert values[4] == 1.0


def test_a_warm_up_below_one_is_a_fraction_of_all_steps():
    assert warmup_steps(ScheduleConfig(warmup=0.1), 100) == 10
    assert warmup_steps(ScheduleConfig(warmup=0.07), 100) == 7
    assert warmup_steps(ScheduleConfig(warmup=0.1), 5) == 1
    assert warmup_steps(ScheduleConfig(warmup=7), 5) == 7
    assert warmup_steps(ScheduleConfig(warmup=0), 5) == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("warmup", [0, 0.5, 3, 50])
def test_the_factor_stays_between_zero_and_one_even_beyond_the_end(name, warmup):
    config = ScheduleConfig(name=name, warmup=warmup)
    assert all(0 <= schedule_factor(config, step, 10) <= 1 for step in range(60))


def test_a_run_of_one_step_uses_the_base_learning_rate():
    assert shares(1, name="cosine") == [1.0]


def test_pieces_are_those_of_diffusers():
    rules = "1:10,0.1:20,0.01:30,0.005"
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = diffusers.optimization.get_piecewise_constant_schedule(optimizer, rules)
    assert shares(40, name="piecewise", pieces=rules) == [scheduler.lr_lambdas[0](step) for step in range(40)]


def test_pieces_may_end_at_shares_of_the_run():
    assert shares(10, name="piecewise", pieces="1: 0.5, 0.1: 0.8, 0") == [1.0] * 5 + [0.1] * 3 + [0.0] * 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1, 0.1", "'1' does not say where it ends"),
        ("1: 0.5, 0.1: x, 0", "'x' is not a number"),
        ("1: 5, 0.1: 5, 0", "5 is followed by 5"),
        ("1: 0.5, 0.1: 20, 0", "0.5 is followed by 20; write all ends as shares below 1, or all as steps"),
        ("", "'' is not a number"),
        ("-1", "-1 is not possible"),
    ],
)
def test_pieces_that_make_no_sense_are_refused(text, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        read_pieces(text)
