"""The queue in the terminal, without a training."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from modules.config.installation import ROOT
from modules.machine.Machine import Machine
from modules.queue.entry_events import append_event
from modules.queue.ProcessLock import boot_id
from modules.queue.TrainingQueue import TrainingQueue
from scripts import run_queue


@pytest.fixture
def call(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    started = []
    monkeypatch.setattr("modules.queue.processes._start", lambda *arguments: started.append(arguments))
    monkeypatch.setattr(run_queue, "read_machine", Machine)  # one without GPUs

    def run(*arguments: str, code: int = 0) -> str:
        assert run_queue.main(["--queue", str(tmp_path / "queue"), *arguments]) == code
        output = capsys.readouterr()
        return output.out + output.err

    run.started, run.queue = started, TrainingQueue(tmp_path / "queue")
    return run


DEMO = ("--preset", "demo", "--set", f"concepts.0.path={ROOT / 'resources/demo/pictures'}")


def test_runs_are_added_listed_moved_changed_and_removed(call):
    assert "Added one: CPU, 2 processes" in call("add", *DEMO, "--name", "one", "--gpus", "2", "--hours", "3")
    assert "chorus-queue" not in call("copy", "1")  # as it is called in a checkout
    call("grid", *DEMO, "--name", "grid", "--vary", "lora.rank=2,4", "--vary", "seed=1,2")
    names = [entry.name for entry in call.queue.entries()]
    assert names == ["one", "one (2)", *(f"grid rank={rank} seed={seed}" for rank in (2, 4) for seed in (1, 2))]
    call("move", "6", "first")
    call("move", "one", "up")
    assert [entry.name for entry in call.queue.entries()][:2] == ["one", "grid rank=4 seed=2"]
    call("edit", "one", "--set", "seed=77", "--name", "first", "--hours", "none", "--gpus", "all")
    changed = call.queue.entries()[0]
    assert (changed.name, changed.limit_hours, changed.gpus, changed.config().seed) == ("first", None, "all", 77)
    call("remove", "2", "3")
    assert len(json.loads(call("list", "--json"))["entries"]) == 4
    lines = call("list").splitlines()
    assert lines[0] == "The queue is off: 4 entries, one after the other."
    assert lines[1].split()[:3] == ["1", "first", "Waiting"]


def test_the_queue_is_started_once_and_paused(call):
    assert "Nothing is waiting" in call("start", code=2)
    call("add", *DEMO)
    call("start", "--side-by-side")
    assert (call.queue.settings().is_on, call.queue.settings().side_by_side, len(call.started)) == (True, True, 1)
    call("pause")
    assert not call.queue.settings().is_on
    assert "is paused" in call("pause", "1")
    assert call.queue.entries()[0].state == "paused"
    call("retry", "1")
    assert call.queue.entries()[0].state == "waiting"


def test_start_and_wait_ends_with_1_if_a_run_has_failed(call, monkeypatch):
    call("add", *DEMO)
    entry = call.queue.entries()[0]

    def fail(seconds):
        append_event(entry.events_path, "ended", status="failed", text="no images", boot=boot_id())
        call.queue.set_on(False)

    monkeypatch.setattr("scripts.run_queue.time.sleep", fail)
    assert "failed (no images)" in call("start", "--wait", code=1)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("add",), "Name the settings"),
        (("add", *DEMO, "--gpus", "some"), "write all, a number"),
        (("add", *DEMO, "--set", "lora.rank=0"), "lora.rank is 0"),
        (("add", "--config", "no.yaml"), "no.yaml"),
        (("retry", "cat"), "names no entry"),
        (("grid", *DEMO, "--vary", "seed"), "has no values"),
    ],
)
def test_mistakes_are_told_and_add_nothing(call, arguments, reason):
    assert reason in call(*arguments, code=2)
    assert call.queue.entries() == []


def test_scripts_still_find_the_queue_of_the_standard_library():
    """A file scripts/queue.py would come first on sys.path of every script, and of torch in it."""
    assert not (ROOT / "scripts" / "queue.py").exists()
    code = "import sys; sys.path.insert(0, 'scripts'); import queue; print(queue.SimpleQueue.__name__)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout == "SimpleQueue\n"
