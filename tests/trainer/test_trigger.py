from __future__ import annotations

import pytest

from modules.trainer.Trigger import Trigger


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("modules.trainer.Trigger.time.monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(("every", "unit"), [(0, "steps"), (5, "never"), (0, "minutes"), (0, "epochs")])
def test_zero_and_never_are_never_due(every, unit, clock):
    trigger = Trigger(every, unit)
    clock[0] += 1e6
    assert not trigger.due_by_clock()
    assert not any(trigger.due_after(step, step, True) for step in range(1, 50))


def test_steps_are_counted_from_one():
    trigger = Trigger(3, "steps")
    assert [step for step in range(1, 11) if trigger.due_after(step, 0, False)] == [3, 6, 9]


def test_epochs_are_due_at_their_last_step_only():
    trigger = Trigger(2, "epochs")
    due = [(epoch, ends) for epoch in range(5) for ends in (False, True) if trigger.due_after(1, epoch, ends)]
    assert due == [(1, True), (3, True)]


def test_fractional_epochs_keep_the_mean_interval():
    trigger = Trigger(2.5, "epochs")
    assert [epoch + 1 for epoch in range(10) if trigger.due_after(1, epoch, True)] == [3, 5, 8, 10]


def test_minutes_count_from_the_start_and_from_the_last_time(clock):
    trigger = Trigger(1.5, "minutes")
    clock[0] += 89
    assert not trigger.due_by_clock()
    clock[0] += 1
    assert trigger.due_by_clock()
    trigger.fired()
    assert not trigger.due_by_clock()
    clock[0] += 90
    assert trigger.due_by_clock()


def test_minutes_depend_only_on_the_clock(clock):
    trigger = Trigger(1, "minutes")
    clock[0] += 600
    assert not trigger.due_after(5, 1, True)
