from __future__ import annotations

import math
import os
import signal
import time

import pytest
import torch
from torch import nn

from modules.config.errors import UserError
from modules.trainer.faults import KINDS, inject_fault
from modules.trainer.Step import Step
from modules.trainer.TrainingLoop import TrainingLoop
from tests.support.make_loop import make_loop


class Ended(Exception):
    """Raised instead of ending the process."""


@pytest.fixture
def deeds(monkeypatch):
    """The recorded effects on the process, in order; they are not carried out."""
    done = []

    def end(*what):
        done.append(what)
        raise Ended

    monkeypatch.setattr(os, "kill", lambda pid, number: end("kill", pid, number))
    monkeypatch.setattr(os, "_exit", lambda code: end("exit", code))
    monkeypatch.setattr(time, "sleep", lambda seconds: end("sleep"))
    return done


@pytest.fixture
def make_failing():
    """A function that makes a loop with a fault, as rank 0 or 1, of one weight that is its loss."""

    def make(text: str, rank: int = 0) -> TrainingLoop:
        loop = make_loop(nn.Linear(1, 1, bias=False), lambda model, batch: (model(batch).sum(), 1, {}))
        loop.runtime.rank = rank
        inject_fault(loop, text)
        return loop

    return make


def losses(loop: TrainingLoop, *steps: int) -> list[float]:
    """The losses of a micro-batch in these steps, from 1."""
    found = []
    for step in steps:
        loop.step = step - 1
        found.append(loop.step_fn(loop.model, torch.ones(1, 1))[0].item())
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_happens_in_its_step_only(kind, make_failing, deeds):
    loop = make_failing(f"{kind}@1:3", rank=1)
    weight = loop.model.weight.item()
    assert losses(loop, 1, 2, 4) == [weight] * 3
    assert deeds == []
    assert loop.model.weight.item() == weight


@pytest.mark.parametrize(
    ("kind", "deed"),
    [
        ("kill", ("kill", os.getpid(), getattr(signal, "SIGKILL", None))),
        ("stop", ("kill", os.getpid(), getattr(signal, "SIGSTOP", None))),
        ("preempt", ("kill", os.getpid(), getattr(signal, "SIGUSR1", None))),
        ("exit", ("exit", 0)),
        ("sleep", ("sleep",)),
    ],
)
@pytest.mark.skipif(os.name != "posix", reason="Windows has no SIGKILL and no SIGSTOP")
def test_a_fault_can_end_or_hang_the_process(kind, deed, make_failing, deeds):
    with pytest.raises(Ended):
        losses(make_failing(f"{kind}@0:1"), 1)
    assert deeds == [deed]


@pytest.mark.parametrize(("kind", "error"), [("raise", RuntimeError), ("oom", torch.OutOfMemoryError)])
def test_a_fault_can_raise_an_error(kind, error, make_failing):
    with pytest.raises(error, match="injected"):
        losses(make_failing(f"{kind}@0:1"), 1)


def test_a_fault_can_perturb_a_weight_slightly_and_once(make_failing):
    loop = make_failing("perturb@0:1")
    weight = loop.model.weight.item()
    assert losses(loop, 1, 1) == pytest.approx([weight + 1e-3] * 2)


def test_a_fault_can_spoil_the_loss_of_all_micro_batches_of_its_step(make_failing):
    assert all(map(math.isnan, losses(make_failing("nan@0:1"), 1, 1)))


@pytest.mark.parametrize("rank", [0, 10])
def test_a_fault_affects_only_its_rank(rank, make_failing, deeds):
    losses(make_failing("kill@1:3", rank), 1, 2, 3, 4)
    assert deeds == []


def test_a_restarted_rank_has_no_fault(make_failing, deeds, monkeypatch):
    monkeypatch.setenv("CHORUS_ATTEMPT", "1")
    losses(make_failing("kill@0:1"), 1)
    assert deeds == []


@pytest.mark.parametrize("text", ["kill", "die@0:1", "kill@0", "kill@0:1 ", "kill@-1:1", "nan@0:x"])
def test_an_invalid_fault_is_refused_on_every_rank(text, make_failing):
    for rank in (0, 1):
        with pytest.raises(UserError, match=r"CHORUS_FAULT .*: write kind@rank:step with one of kill, stop"):
            make_failing(text, rank)


def test_other_programs_may_have_a_variable_of_that_name(monkeypatch):
    monkeypatch.setenv("FAULT", "raise@0:1")
    loop = make_loop(nn.Linear(1, 1), lambda model, batch: (model(batch).sum(), 1, {}))
    loop.fit([Step([torch.ones(1, 1)])])
    assert loop.step == 1
