from __future__ import annotations

import os
import signal
import time
from types import SimpleNamespace

import pytest
import torch

from modules.config.errors import UserError
from modules.trainer.faults import KINDS, Fault


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


def engine():
    return SimpleNamespace(trainable={"a": torch.zeros(2, requires_grad=True), "b": torch.zeros(2)})


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_happens_at_its_step_only(kind, deeds):
    fault, model = Fault(1, f"{kind}@1:3"), engine()
    for step in (1, 2, 4):
        fault.before(step, model)
        assert not fault.spoils_loss(step)
    assert deeds == []
    assert not model.trainable["a"].any()
    assert fault.spoils_loss(3) == (kind == "nan")


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
def test_a_fault_can_end_or_hang_the_process(kind, deed, deeds):
    with pytest.raises(Ended):
        Fault(0, f"{kind}@0:1").before(1, engine())
    assert deeds == [deed]


@pytest.mark.parametrize(("kind", "error"), [("raise", RuntimeError), ("oom", torch.OutOfMemoryError)])
def test_a_fault_can_raise_an_error(kind, error):
    with pytest.raises(error, match="injected"):
        Fault(0, f"{kind}@0:1").before(1, engine())


def test_a_fault_can_perturb_a_weight_slightly():
    model = engine()
    Fault(0, "perturb@0:1").before(1, model)
    assert model.trainable["a"].tolist() == pytest.approx([1e-3, 1e-3])
    assert not model.trainable["b"].any()


@pytest.mark.parametrize(("rank", "text"), [(0, ""), (0, "kill@1:3"), (10, "kill@1:3")])
def test_a_fault_affects_only_its_rank(rank, text, deeds):
    fault = Fault(rank, text)
    assert fault.step == 0
    for step in range(5):
        fault.before(step, engine())
        assert not fault.spoils_loss(step)
    assert deeds == []


def test_a_restarted_rank_has_no_fault(monkeypatch):
    monkeypatch.setenv("CHORUS_ATTEMPT", "1")
    assert Fault(1, "kill@1:3").step == 0
    monkeypatch.setenv("CHORUS_ATTEMPT", "0")
    assert Fault(1, "kill@1:3").step == 3


@pytest.mark.parametrize("text", ["kill", "die@0:1", "kill@0", "kill@0:1 ", "kill@-1:1", "nan@0:x"])
def test_an_invalid_fault_is_refused_on_every_rank(text):
    for rank in (0, 1):
        with pytest.raises(UserError, match=r"write kind@rank:step with one of kill, stop"):
            Fault(rank, text)
