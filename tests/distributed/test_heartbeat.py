from __future__ import annotations

import pytest

from modules.config.errors import UserError
from modules.distributed.Heartbeat import LIMIT_VARIABLE, PHASE_LIMITS, read_limits


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("", {}),
        ("60", dict.fromkeys(PHASE_LIMITS, 60.0)),
        ("2.5", dict.fromkeys(PHASE_LIMITS, 2.5)),
        ("training=60", {"training": 60.0}),
        ("saving = 1e3", {"saving": 1000.0}),
    ],
)
def test_a_limit_applies_to_all_phases_or_to_one(text, limits):
    assert read_limits({LIMIT_VARIABLE: text}) == limits


def test_without_the_variable_there_are_no_overrides():
    assert read_limits({}) == {}


WRONG_PHASES = ("train=60", "Training=60", "=60", "training", "training=60,saving=5", "training=saving=5")
WRONG_NUMBERS = ("training=", "training=0", "training=1,5", "60s", " ", "0", "-1", "nan", "inf")


@pytest.mark.parametrize("text", [*WRONG_PHASES, *WRONG_NUMBERS])
def test_an_invalid_value_is_refused_in_one_sentence(text):
    with pytest.raises(UserError) as refused:
        read_limits({LIMIT_VARIABLE: text})
    assert str(refused.value) == (
        f"CHORUS_HEARTBEAT_SECONDS is {text!r}: it must be a number of seconds above 0, such as 60, or one for a "
        "phase (loading, joining, caching, training, sampling, saving, waiting, measuring), such as training=60; "
        "correct it, or unset it."
    )
