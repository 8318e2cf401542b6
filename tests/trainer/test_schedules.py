from __future__ import annotations

import math

import pytest

from modules.config.ScheduleConfig import ScheduleConfig
from modules.trainer.schedules import learning_rate_share, warmup_steps


def shares(total: int, **settings) -> list[float]:
    return [learning_rate_share(ScheduleConfig(**settings), step, total) for step in range(total)]


def test_constant_stays_at_the_whole_rate():
    assert shares(5, name="constant") == [1.0] * 5


def test_linear_falls_by_equal_steps_to_its_final_share():
    assert shares(5, name="linear", final_share=0.5) == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6])


def test_cosine_follows_its_formula():
    expected = [0.1 + 0.9 * (1 + math.cos(math.pi * step / 8)) / 2 for step in range(8)]
    assert shares(8, name="cosine", final_share=0.1) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
def test_the_warm_up_rises_in_equal_steps_and_reaches_the_whole_rate(name):
    values = shares(20, name=name, warmup=4)
    assert values[:4] == [0.25, 0.5, 0.75, 1.0]
    assert values[4] == 1.0


def test_a_warm_up_below_one_is_a_share_of_all_steps():
    assert warmup_steps(ScheduleConfig(warmup=0.1), 100) == 10
    assert warmup_steps(ScheduleConfig(warmup=0.1), 5) == 1
    assert warmup_steps(ScheduleConfig(warmup=7), 5) == 7
    assert warmup_steps(ScheduleConfig(warmup=0), 5) == 0


@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 0.5, 3, 50])
def test_the_share_stays_between_zero_and_one_even_beyond_the_end(name, warmup):
    config = ScheduleConfig(name=name, warmup=warmup)
    assert all(0 <= learning_rate_share(config, step, 10) <= 1 for step in range(60))


def test_a_run_of_one_step_uses_the_whole_rate():
    assert shares(1, name="cosine") == [1.0]
