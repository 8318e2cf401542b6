import io
import json
import os
import select
import struct
from dataclasses import FrozenInstanceError, replace

import pytest

from modules.session.event_types import EVENT_TYPES
from modules.session.EventCallbacks import EventCallbacks
from modules.session.events import EventWriter
from modules.session.StepInfo import StepInfo
from modules.session.TerminalCallbacks import TerminalCallbacks
from modules.session.TrainCallbacks import CallbackList, TrainCallbacks
from tests.support.waiting import PATIENCE_SECONDS

INFO = StepInfo(
    epoch=1, step=2, steps_total=10, loss=0.5, smooth_loss=0.25, lr=1e-4, samples=8, seconds=2.0, grad_norm=0.1
)
CALLS = {
    "on_started": (1000.5,),
    "on_status": ("Caching latents",),
    "on_waiting": ("Waiting for space",),
    "on_progress": ("Caching images", 3, 8),
    "on_step": (INFO,),
    "on_validation": (2, 40, 0.5, 0.25),
    "on_sample": ("a.png", "a fox", 2),
    "on_samples": ("samples/2", 2),
    "on_backup": ("backup/2", 2),
    "on_saved": ("model.safetensors", 2),
    "on_warning": ("slow disk",),
    "on_failed": ("out of memory",),
    "on_finished": (10,),
}


class Screen(io.StringIO):
    def isatty(self):
        return True


class Recorder:
    """Accepts and records every callback."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *args: self.calls.append((name, args))


def call_all(callbacks):
    for name, args in CALLS.items():
        getattr(callbacks, name)(*args)


def test_the_calls_listed_here_are_all_there_are():
    no_events = {"on_event", "on_epoch", "on_figures"}  # only TrainingEngine has them, whose runs have no event files
    assert set(CALLS) == {name for name in vars(TrainCallbacks) if name.startswith("on_")} - no_events
    assert {name.removeprefix("on_") for name in CALLS} == set(EVENT_TYPES)


def test_a_listener_may_leave_every_call_out():
    call_all(TrainCallbacks())


def test_a_list_passes_every_call_to_every_listener():
    first, second = Recorder(), Recorder()
    call_all(CallbackList([first, second]))
    assert first.calls == second.calls == list(CALLS.items())


def test_every_call_becomes_an_event_with_its_fields(tmp_path):
    with EventWriter(tmp_path / "e.jsonl", rank=1) as writer:
        call_all(EventCallbacks(writer))
    lines = map(json.loads, (tmp_path / "e.jsonl").read_text(encoding="utf-8").splitlines())
    found = {event.pop("type"): event for event in lines}
    for event in found.values():
        assert event.pop("time") > 0
        assert event.pop("rank") == 1
    assert found == {
        "started": {"started": 1000.5},
        "status": {"text": "Caching latents"},
        "waiting": {"text": "Waiting for space"},
        "progress": {"text": "Caching images", "done": 3, "total": 8},
        "step": {
            "epoch": 1,
            "step": 2,
            "steps_total": 10,
            "loss": 0.5,
            "smooth_loss": 0.25,
            "lr": 1e-4,
            "samples": 8,
            "seconds": 2.0,
            "grad_norm": 0.1,
            "data_seconds": 0.0,
            "device": "",
            "memory_bytes": None,
            "peak_memory_bytes": None,
        },
        "validation": {"step": 2, "samples": 40, "loss": 0.5, "ema_loss": 0.25},
        "sample": {"path": "a.png", "prompt": "a fox", "step": 2},
        "samples": {"path": "samples/2", "step": 2},
        "backup": {"path": "backup/2", "step": 2},
        "saved": {"path": "model.safetensors", "step": 2},
        "warning": {"text": "slow disk"},
        "failed": {"text": "out of memory"},
        "finished": {"step": 10},
    }


def test_what_is_told_of_a_step_can_not_be_changed_by_a_listener():
    with pytest.raises(FrozenInstanceError):
        INFO.loss = 1.0


def test_a_log_file_gets_plain_lines():
    log = io.StringIO()
    callbacks = TerminalCallbacks(log)
    call_all(callbacks)
    callbacks.close()
    assert log.getvalue().splitlines() == [
        "Caching latents",
        "Waiting for space",
        "Caching images: 3 of 8",
        "step 2/10, epoch 1, loss 0.2500, lr 1.00e-04, 4.00 samples/s",
        "Validation at step 2: loss 0.5000, of the averaged weights 0.2500 (40 held-out samples)",
        "Sample at step 2: a.png",
        "Backup at step 2: backup/2",
        "Model saved at step 2: model.safetensors",
        "Warning: slow disk",
        "Failed: out of memory",
        "Finished after 10 steps.",
    ]


def test_a_log_file_is_not_flooded_with_steps_but_has_the_last(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("modules.session.TerminalCallbacks.time.monotonic", lambda: now[0])
    log = io.StringIO()
    callbacks = TerminalCallbacks(log)
    for step in range(1, 11):
        callbacks.on_step(replace(INFO, step=step))
        now[0] += 1.0
    assert [line.split(",")[0] for line in log.getvalue().splitlines()] == ["step 1/10", "step 6/10", "step 10/10"]


def test_a_skipped_step_without_loss_or_time_is_shown():
    log = io.StringIO()
    TerminalCallbacks(log).on_step(replace(INFO, loss=None, smooth_loss=None, seconds=0.0))
    assert log.getvalue() == "step 2/10, epoch 1, loss not finite, lr 1.00e-04\n"


def test_a_terminal_gets_a_bar_that_starts_where_a_resumed_run_does():
    screen = Screen()
    callbacks = TerminalCallbacks(screen)
    callbacks.on_step(replace(INFO, step=7))
    callbacks.on_warning("slow disk")
    assert callbacks._bar.n == 7
    callbacks.on_step(replace(INFO, step=10))
    callbacks.close()
    callbacks.close()
    assert "Warning: slow disk" in screen.getvalue()
    assert "10/10" in screen.getvalue()
    assert "loss 0.2500" in screen.getvalue()
    assert "4.00 samples/s" in screen.getvalue()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such terminals")
@pytest.mark.parametrize("columns", [0, 100])
def test_a_terminal_shows_progress_whatever_size_it_says_it_has(columns):
    import fcntl
    import termios

    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", columns // 4, columns, 0, 0))
    with open(theirs, "w", encoding="utf-8") as terminal:
        callbacks = TerminalCallbacks(terminal)
        callbacks.on_step(replace(INFO, step=10))
        callbacks.close()
        shown = b""
        while b"10/10" not in shown:  # a terminal may hand over its output in parts
            assert select.select([ours], [], [], PATIENCE_SECONDS)[0], shown
            shown += os.read(ours, 10_000)
    os.close(ours)


def test_the_samples_of_all_ranks_are_listed_once(tmp_path):
    own, other = tmp_path / "000_a.png", tmp_path / "001_b.png"
    log = io.StringIO()
    callbacks = TerminalCallbacks(log)
    for step in (5, 10):
        own.touch()
        callbacks.on_sample(str(own), "a", step)
        other.touch()
        callbacks.on_samples(tmp_path, step)
    listed = [f"Sample at step {step}: {path}" for step in (5, 10) for path in (own, other)]
    assert log.getvalue().splitlines() == listed
