"""The index of runs: what it says, what it reads again, and what becomes of it when something goes wrong."""

from __future__ import annotations

import builtins
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from modules.config.installation import ROOT
from modules.queue.run_end import end_of_run
from modules.runs import RunEvents as run_events
from modules.runs.marks import change_marks
from modules.runs.RunIndex import FOLDER, RunIndex
from modules.session.event_types import SampleEvent, StartedEvent, ValidationEvent
from modules.session.file_lock import lock
from modules.session.following import run_info
from modules.session.RunLock import RunLock
from tests.support.many_runs import START, add_events, make_run, step_of

NUM_RUNS = 500


@pytest.fixture
def index(tmp_path) -> RunIndex:
    return RunIndex(tmp_path)


def rows_of(index: RunIndex) -> dict:
    return {row.name: row for row in index.load()}


@pytest.fixture
def bytes_read(monkeypatch) -> list[int]:
    """The sizes of what is read of event files from now on."""
    sizes: list[int] = []
    read_lines = run_events.read_lines

    def reading(path, offset, max_bytes):
        lines, end = read_lines(path, offset, max_bytes)
        sizes.append(end - offset)
        return lines, end

    monkeypatch.setattr(run_events, "read_lines", reading)
    return sizes


def test_five_hundred_runs_are_read_once_and_shown_from_the_index(tmp_path, index, bytes_read, monkeypatch):
    for number in range(NUM_RUNS):
        make_run(tmp_path / f"run-{number}", steps=2, started=START + number)
    (tmp_path / "images").mkdir()
    (tmp_path / "notes.txt").touch()
    assert {row.is_read for row in index.glance()} == {False}
    assert index.refresh()
    assert len(index.load()) == NUM_RUNS
    before = index.stamp()
    del bytes_read[:]
    assert not RunIndex(tmp_path).refresh()
    assert (bytes_read, index.stamp()) == ([], before)
    monkeypatch.setattr(builtins, "open", None)  # of all runs, the index alone is read
    assert len(rows_of(RunIndex(tmp_path))) == NUM_RUNS


def test_a_row_says_how_the_run_went(tmp_path, index):
    run = make_run(tmp_path / "cat", steps=10, values={"family": "sdxl", "optimizer": {"learning_rate": 0.5}})
    add_events(run, [(START + 50, ValidationEvent(10, 4, 0.25, None))])
    add_events(run, [(START + 20, SampleEvent("samples/b.png", "b", 10))], rank=1)
    index.refresh()
    row = rows_of(index)["cat"]
    assert (row.status, row.step, row.total, row.epoch, row.images) == ("finished", 10, 10, 1, 40)
    assert (row.started, row.seconds, row.loss, row.validation) == (START - 1, 51.0, 0.5, 0.25)
    assert (row.num_samples, row.saved) == (2, ((10, "models/m"),))
    assert row.settings == {"family": "sdxl", "optimizer.learning_rate": 0.5}
    assert row.preset.startswith("sdxl-lora")
    assert row.num_changes > 0


def test_only_the_new_bytes_of_a_run_that_goes_on_are_read(tmp_path, index, bytes_read):
    run = make_run(tmp_path / "run", steps=300, status="")
    index.refresh()
    size = run.event_path(0).stat().st_size
    del bytes_read[:]
    add_events(run, [(START + 700, step_of(301, 400))])
    with open(run.event_path(0), "ab") as file:
        file.write(b'{"time": 1.0, "type": "st')  # half a line
    assert index.refresh()
    assert 0 < sum(bytes_read) < run.event_path(0).stat().st_size - size
    assert (rows_of(index)["run"].step, rows_of(index)["run"].images) == (301, 1204)
    row, events = RunIndex(tmp_path).read("run")
    anew = run_events.RunEvents()
    anew.read(run)
    assert row.step == 301
    assert events.to_plain() == anew.to_plain()


def test_changed_replaced_and_removed_runs_are_noticed(tmp_path, index):
    for name in ("gone", "replaced", "shorter", "noted", "set"):
        make_run(tmp_path / name, steps=50, values={})
    index.refresh()
    num_files = len(list(index.path.parent.iterdir()))
    shutil.rmtree(tmp_path / "gone")
    for name, steps in (("replaced", 80), ("shorter", 5)):
        shutil.rmtree(tmp_path / name)
        make_run(tmp_path / name, steps=steps, started=START + 9)
    change_marks(tmp_path / "noted", star=True)
    (tmp_path / "set" / "config.yaml").write_text("epochs: [")
    assert index.refresh()
    rows = rows_of(index)
    assert set(rows) == {"replaced", "shorter", "noted", "set"}
    assert (rows["replaced"].step, rows["replaced"].images) == (80, 320)
    assert (rows["shorter"].step, rows["shorter"].images) == (5, 20)
    assert rows["noted"].marks.star
    assert rows["set"].settings is None
    assert len(list(index.path.parent.iterdir())) == num_files - 1


def test_a_resumed_run_counts_repeated_steps_once_and_its_pauses_not_at_all(tmp_path, index):
    run = make_run(tmp_path / "run", steps=20)
    resumed = START + 100_000
    again = [(resumed + 2 * number, step_of(number, 30)) for number in range(11, 31)]
    add_events(run, [(resumed, StartedEvent(resumed)), *again])
    index.refresh()
    row, events = index.read("run")
    assert (row.step, row.images, row.seconds) == (30, 120, 41.0 + 60.0)
    points = events.curve.points()
    assert [point.step for point in points] == list(range(1, 31))
    assert points[-1].images == 120


def test_half_written_and_foreign_files_are_left_alone(tmp_path, index):
    broken = tmp_path / "broken"
    (broken / "events").mkdir(parents=True)
    (broken / "events" / "rank-0.jsonl").write_bytes(b'\x00\x00{"time": 1\n[1, 2]\n{"time": 5.0, "type": "step"}\nhalf')
    (broken / "exit.json").write_text("{")
    (broken / "marks.json").write_text('{"name": 3, "tags": "x", "star": 1}')
    index.refresh()
    row = rows_of(index)["broken"]
    assert (row.status, row.step, row.marks.tags, row.marks.star) == ("ended", 0, (), False)
    for damage in ("", "[]", '{"version": 1, "runs": [{"row": {}}]}', '{"version": 99}', "\x00" * 50):
        index.path.write_text(damage)
        for entry in index.path.parent.glob("run-*.json"):
            entry.write_text(damage)
        assert index.load() == []
        assert index.refresh()
        assert rows_of(index)["broken"] == row


RECORDS = [
    ({"status": "finished", "time": 5.0}, "finished"),
    ({"status": "stopped", "time": "noon"}, "stopped"),
    ({"status": "half", "time": 5.0}, "ended"),
    ({}, "ended"),
]


@pytest.mark.parametrize(("record", "status"), RECORDS)
def test_index_window_and_queue_read_the_same_end(tmp_path, index, record, status):
    run = make_run(tmp_path / "run", status="")
    os.utime(run.event_path(0), (START, START))
    run.exit_path.write_text(json.dumps(record))
    os.utime(run.exit_path, (START, START))
    glanced = {row.status for row in index.glance()}
    index.refresh()
    info, end = run_info(run.path), end_of_run(run, since=0.0)
    assert info is not None
    assert (glanced, rows_of(index)["run"].status, info.status) == ({status}, status, status)
    assert (end[0] if end else "ended") == status
    assert end_of_run(run, since=6.0) is None


def test_a_run_counts_as_running_as_long_as_its_lock_is_held(tmp_path, index):
    run = make_run(tmp_path / "run", status="")
    os.utime(run.event_path(0), (START, START))
    with RunLock(run.lock_path):
        assert [row.status for row in index.glance()] == ["running"]
        index.refresh()
        assert rows_of(index)["run"].status == "running"
    assert index.refresh()
    assert rows_of(index)["run"].status == "ended"


def test_two_windows_refresh_one_index_in_turn(tmp_path, index):
    make_run(tmp_path / "run")
    index.refresh()
    make_run(tmp_path / "other")
    with open(index.path.parent / "lock", "rb") as file:
        lock(file)
        assert not RunIndex(tmp_path).refresh()
    assert set(rows_of(index)) == {"run"}
    assert RunIndex(tmp_path).refresh()
    assert set(rows_of(index)) == {"run", "other"}


@pytest.mark.skipif(os.name == "nt", reason="the process is killed by a signal")
@pytest.mark.parametrize("step", [1, 3, 4])
def test_a_refresh_that_is_killed_leaves_an_index_that_the_next_one_completes(tmp_path, index, step):
    for name in ("a", "b", "c"):
        make_run(tmp_path / name)
    command = [sys.executable, "-m", "tests.support.many_runs", str(tmp_path), str(step)]
    assert subprocess.run(command, cwd=ROOT, timeout=300).returncode < 0
    assert index.load() == []
    assert index.refresh()
    assert {row.name: row.images for row in index.load()} == dict.fromkeys("abc", 80)
    assert not [path for path in (tmp_path / FOLDER).iterdir() if ".tmp-" in path.name]


def test_an_index_that_cannot_be_kept_beside_the_runs_is_in_the_users_cache(tmp_path, monkeypatch):
    make_run(tmp_path / "runs" / "run")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr("modules.runs.RunIndex.user_cache", lambda: tmp_path / "cache")
    index = RunIndex(tmp_path / "runs")
    index.refresh()
    assert set(rows_of(index)) == {"run"}
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["run"]


def test_the_index_is_plain_data(tmp_path, index):
    make_run(tmp_path / "run", values={"sampling": {"samples": [{"prompt": "a\ud7ff"}]}})
    index.refresh()
    text = Path(index.path).read_text(encoding="ascii")
    assert json.loads(text)["runs"][0]["row"]["settings"]["sampling.samples.0.prompt"] == "a\ud7ff"
