"""RunModel and RunReader on hand-written folders, and on runs without a model."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from modules.config.errors import UserError
from modules.config.files import config_from_values
from modules.session.crash_report import crash_report
from modules.session.following import event_files, find_runs, is_running
from modules.session.RunFolder import RunFolder
from modules.session.RunLock import RunLock
from modules.ui.models import RunModel as run_model_module
from modules.ui.models.run_text import describe_phase
from modules.ui.models.RunModel import RunModel
from modules.ui.models.RunReader import GONE, NO_RECORD, RunReader
from modules.ui.models.RunState import Activity
from tests.support.run_processes import pid_of_rank
from tests.support.StartedRun import MARK, find_processes
from tests.support.toy_run import make_toy_chorus
from tests.support.waiting import PATIENCE_SECONDS, wait_until

linux = pytest.mark.skipif(sys.platform != "linux", reason="these tests send signals and read /proc")
SECONDS_TO_TELL, LEEWAY = 5.0, 4  # to report a killed rank on an idle machine, and the factor allowed for a busy one


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    return folder


@pytest.fixture
def running(folder):
    """The folder, locked as by a running run."""
    with RunLock(folder.lock_path):
        yield folder


def tell(folder, kind, rank=0, at=1000.0, **fields):
    path = folder.supervisor_event_path if rank is None else folder.event_path(rank)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"time": at, "type": kind, "rank": rank, **fields}) + "\n")


def step(folder, number, rank=0, at=None, seconds=0.5, total=100, loss=0.5, **fields):
    values = {"epoch": 1, "step": number, "steps_total": total, "loss": loss, "smooth_loss": loss, "lr": 1e-4}
    values |= {"samples": 8, "seconds": seconds, "grad_norm": 0.1, "data_seconds": 0.01, "device": f"cuda:{rank}"}
    values |= {"memory_bytes": 5, "peak_memory_bytes": 7, **fields}
    tell(folder, "step", rank, 1000.0 + number if at is None else at, **values)


def read(folder, **arguments):
    reader = RunReader(folder, **arguments)
    while reader.look():
        pass
    return reader


def look_around(reader):
    """Make the reader read everything, not only events."""
    reader._next_look_around = 0.0
    reader.look()


def until(model, condition, seconds=PATIENCE_SECONDS):
    """Poll like the window does, until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition(model.state):
        if time.monotonic() > deadline:
            log = model.state.folder / "log" / "window.log"
            raise TimeoutError(f"{model.state}\n{log.read_text() if log.exists() else ''}")
        time.sleep(0.05)
        model.poll()
    return model.state


class TestReading:
    def test_phase_step_and_speed_are_those_of_the_events(self, running):
        tell(running, "status", text="Training: 100 steps of 8 samples")
        for number in range(1, 11):
            step(running, number, loss=1 / number)
        state = read(running).state
        assert (state.phase, state.step, state.total, state.epoch) == ("Training", 10, 100, 1)
        assert (state.loss, state.lr, state.is_running, state.exit) == (0.1, 1e-4, True, None)
        assert (state.steps_per_second, state.samples_per_second) == pytest.approx((2.0, 16.0))

    def test_what_is_said_of_the_ranks_is_no_phase_and_gives_their_devices(self, running):
        tell(running, "status", text="Loading libraries")
        tell(running, "status", rank=1, text="Loading libraries")
        for text in ("Number of processes: 2", "Process 0 using device: cpu", "Process 1 using device: cuda:3 on b"):
            tell(running, "status", text=text)
        state = read(running).state
        assert (state.phase, [row.device for row in state.ranks]) == ("Loading libraries", ["cpu", "cuda:3"])

    def test_a_rank_that_draws_the_first_samples_is_not_loading(self, running):
        for rank in (0, 1):
            tell(running, "status", rank=rank, text="Loading model")
        tell(running, "status", text="Generating 10 samples")
        reader = read(running)
        look_around(reader)
        assert [row.state for row in reader.state.ranks] == ["sampling", "loading"]

    def test_the_phase_is_not_that_of_what_was_done_between_two_steps(self, running):
        step(running, 1)
        tell(running, "status", text="Generating 10 samples")
        assert read(running).state.phase == "Generating 10 samples"
        step(running, 2)
        assert read(running).state.phase == "Training"

    def test_a_run_that_waits_for_space_says_so_until_it_goes_on_even_while_it_is_stopping(self, running):
        text = "Waiting up to 10 min for 4.2 GB in /data/run/models; stop the run to stop waiting"
        tell(running, "status", text="Saving the model")
        tell(running, "waiting", text=text)
        tell(running, "warning", text="slow disk")
        state = read(running).state
        assert state.waits_for == text
        assert describe_phase(state) == describe_phase(replace(state, is_stopping=True)) == text
        assert describe_phase(replace(state, is_running=False, exit={"status": "stopped"})) == "Stopped"
        tell(running, "saved", path="model.safetensors", step=3)
        assert read(running).state.waits_for == ""
        tell(running, "waiting", text=text)
        step(running, 4)
        assert read(running).state.waits_for == ""

    def test_a_full_disk_is_said_though_the_run_can_no_longer_write_that_it_is(self, running, monkeypatch):
        step(running, 1)
        free = [0]
        monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free[0]))
        reader = read(running)
        assert describe_phase(reader.state).startswith(f"No space is left on the disk of {running.path}")
        free[0] = 10**9
        look_around(reader)
        assert describe_phase(reader.state) == "Training"

    def test_caching_is_counted_over_all_ranks(self, running):
        for rank, done in ((0, 2), (1, 5)):
            tell(running, "progress", rank, text="Caching images", done=done, total=10)
        assert read(running).state.activity == Activity("Caching images", 7, 20)
        tell(running, "progress", 0, text="Caching captions", done=1, total=4)  # rank 1 is still at its images
        state = read(running).state
        assert (state.phase, state.activity) == ("Caching captions", Activity("Caching captions", 1, 4))
        for rank in (0, 1):
            tell(running, "status", rank, text="Loading model")
        assert read(running).state.activity is None

    def test_the_remaining_time_leaves_out_the_warm_up(self, running):
        tell(running, "status", text="Loading the model")
        tell(running, "status", text="Training")
        for number in range(1, 4):
            step(running, number, seconds=100.0)
        assert read(running).state.eta_seconds is None
        for number in range(4, 8):
            step(running, number, seconds=0.5)
        assert read(running).state.eta_seconds == pytest.approx((100 - 7) * 0.5)

    def test_the_speed_before_a_resume_says_nothing_after_it(self, running):
        for number in range(1, 20):
            step(running, number, seconds=9.0)
        for text in ("Loading libraries", "Loading the model", "Training"):
            tell(running, "status", text=text)
        assert read(running).state.eta_seconds is None
        for number in range(15, 25):
            step(running, number, seconds=0.5)
        assert read(running).state.steps_per_second == pytest.approx(2.0)

    def test_each_rank_has_a_row_of_its_own_figures(self, running):
        for rank in (0, 1):
            step(running, 7, rank=rank, memory_bytes=10 + rank, peak_memory_bytes=20 + rank)
        rows = read(running).state.ranks
        assert [(row.rank, row.device, row.step, row.memory_bytes, row.peak_memory_bytes) for row in rows] == [
            (0, "cuda:0", 7, 10, 20),
            (1, "cuda:1", 7, 11, 21),
        ]
        assert [row.state for row in rows] == ["training", "training"]

    @pytest.fixture
    def now(self, monkeypatch):
        """A frozen clock."""
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now)
        return now

    def test_the_heartbeats_of_the_supervisor_show_a_rank_that_writes_no_events(self, running, now):
        step(running, 7, at=now - 500)
        beat = {"phase": "caching", "silent_seconds": 0.5, "limit_seconds": 600.0, "done": None}
        record = {"time": now - 1.0, "ranks": {"0": beat, "1": beat | {"done": "finished"}}}
        running.heartbeats_path(0).write_text(json.dumps(record))
        rows = read(running).state.ranks
        assert [(row.rank, row.state) for row in rows] == [(0, "caching"), (1, "finished")]
        assert rows[0].heartbeat_seconds == pytest.approx(1.5)

    def test_old_heartbeats_are_no_sign_of_life(self, running, now):
        step(running, 7, at=now - 500)
        beat = {"phase": "caching", "silent_seconds": 0.5, "limit_seconds": 600.0, "done": None}
        running.heartbeats_path(0).write_text(json.dumps({"time": now - 400, "ranks": {"0": beat}}))
        assert read(running).state.ranks[0].heartbeat_seconds == pytest.approx(500)

    def test_the_rank_that_was_killed_is_named(self, folder):
        for rank in (0, 1):
            step(folder, 7, rank=rank)
        folder.write_exit("failed", rank=1, kind="killed", text="Rank 1 was killed by SIGKILL.", signal="SIGKILL")
        state = read(folder).state
        assert state.phase == "Failed: Rank 1 was killed by SIGKILL."
        assert [row.state for row in state.ranks] == ["ended", "killed"]
        assert not state.is_running

    def test_samples_backups_warnings_and_validation_come_along(self, running):
        picture = running.samples_dir / "step-000000012" / "0.png"
        tell(running, "sample", path=str(picture), prompt="a fox", step=12)
        tell(running, "backup", path=str(running.backup_dir / "step-000000012"), step=12)
        tell(running, "warning", rank=1, text="slow disk")
        tell(running, "validation", step=12, samples=4, loss=0.25, ema_loss=None)
        reader = read(running)
        (sample,) = reader.state.samples
        assert (sample.step, sample.prompt, sample.path) == (12, "a fox", picture)
        assert reader.state.backups == [running.backup_dir / "step-000000012"]
        assert [(line.rank, line.text) for line in reader.state.warnings] == [(1, "slow disk")]
        assert reader.history.validation == [(12, 0.25, None)]

    def test_names_are_shown_on_one_line_each_and_paths_stay_as_they_are(self, running):
        name, shown = "a\x1b[2J\n\u202eb.png", r"a\x1b[2J\n\u202eb.png"
        tell(running, "status", text=name)
        tell(running, "warning", text=f"{name} is left out.")
        tell(running, "sample", path=str(running.samples_dir / name), prompt="a fox", step=12)
        tell(running, "failed", text=f"{name!r} is broken\n  at line 2")
        running.write_exit("failed", rank=0, kind="error", text=f"Failed at {name}", traceback=f"ValueError: {name}")
        reader = read(running)
        reader._look_around()
        texts = [line.text for line in reader.log_since(0)[0]]
        assert texts[-5:-1] == [
            shown,
            f"{shown} is left out.",
            f"Sample at step 12: {running.samples_dir}/{shown}",
            f"{name!r} is broken\n  at line 2",
        ]
        assert "\x1b" not in texts[-1] + reader.state.phase
        assert reader.state.warnings[0].text == f"{shown} is left out."
        assert reader.state.samples[0].path == running.samples_dir / name

    @pytest.mark.parametrize("elsewhere", ["/data/other", "D:\\runs\\other"])
    def test_a_run_that_was_moved_finds_its_pictures(self, running, elsewhere):
        slash = "\\" if "\\" in elsewhere else "/"
        tell(running, "sample", path=slash.join([elsewhere, "samples", "step-1", "0.png"]), prompt="a", step=1)
        assert read(running).state.samples[0].path == running.samples_dir / "step-1" / "0.png"

    def test_a_line_that_is_being_written_waits_for_its_end(self, running):
        step(running, 1)
        text = running.event_path(0).read_text()
        with running.event_path(0).open("a") as file:
            file.write(text.replace('"step": 1,', '"step": 2,')[:-20])
        reader = read(running)
        assert reader.state.step == 1
        with running.event_path(0).open("a") as file:
            file.write(text.replace('"step": 1,', '"step": 2,')[-20:])
        reader.look()
        assert reader.state.step == 2

    @pytest.mark.parametrize(
        "damage",
        [
            '{"time": 1, "type": "step", "rank": 0, "st\n',
            "\0\0\0\0\n",
            '{"time": 1, "type": "step", "rank": 0}\n',
            '{"time": 1, "type": "step", "rank": 0, "step": "x", "seconds": [], "samples": null, "loss": {}}\n',
            '{"time": null, "type": "status", "rank": 0, "text": 5}\n',
            '{"time": 1, "type": "sample", "rank": 0, "path": 5, "prompt": 7, "step": 1}\n',
            '{"time": 1, "type": "validation", "rank": 0, "loss": null, "step": 1, "samples": 2}\n',
            '{"time": 1, "type": "step", "rank": {}, "step": 1}\n',
            "[]\n5\n\n",
        ],
    )
    def test_a_damaged_line_is_passed_over(self, running, damage):
        step(running, 1)
        with running.event_path(0).open("a") as file:
            file.write(damage)
        step(running, 2)
        assert read(running).state.step == 2

    @pytest.mark.parametrize("when", [1e300, -1.0, float("nan")])
    def test_a_line_of_no_time_is_passed_over_and_the_others_are_told(self, running, when):
        tell(running, "status", text="one")
        tell(running, "status", at=when, text="of no time")
        tell(running, "status", text="two")
        assert [line.text for line in read(running).log_since(0)[0]] == ["one", "two"]

    def test_an_end_whose_model_is_elsewhere_says_where(self, folder):
        step(folder, 3)
        folder.note_end("The model is in /tmp/x.", elsewhere=["/tmp/x"])
        folder.write_exit("finished", rank=0)
        assert read(folder).state.phase == "Finished after 3 steps. The model is in /tmp/x."

    def test_an_end_of_no_time_is_told_all_the_same(self, folder):
        step(folder, 3)
        folder.write_exit("failed", rank=0, kind="error", text="boom", traceback="ValueError: boom")
        folder.exit_path.write_text(json.dumps({**folder.read_exit(), "time": 1e300}))
        (line,) = (line for line in read(folder).log_since(0)[0] if line.kind == "traceback")
        assert (time.localtime(line.time), line.text) == (time.localtime(0), "ValueError: boom")

    @pytest.mark.parametrize("name", ["loss", "smooth_loss", "lr", "memory_bytes", "data_seconds"])
    def test_what_is_shown_as_a_number_is_one(self, running, name):
        for rank in (0, 1):
            step(running, 1, rank=rank)
        reader = read(running)
        for rank in (0, 1):
            step(running, 2, rank=rank, **{name: "many"})
        reader.look()
        state = reader.state
        assert [state.step, *(row.step for row in state.ranks)] == [1, 1, 1]

    def test_a_validation_of_no_number_is_passed_over(self, running):
        tell(running, "validation", step=1, samples=2, loss=0.5)
        tell(running, "validation", step=2, samples=2, loss=[])
        reader = read(running)
        assert ([step for step, *_ in reader.history.validation], reader.log_since(0)[1]) == ([1], 1)

    def test_a_validation_that_is_not_finite_is_told(self, running):
        tell(running, "validation", step=5, samples=3, loss=None)
        (line,) = read(running).log_since(0)[0]
        assert line.text == "Validation at step 5: loss not finite (3 samples)"

    def test_steps_that_took_for_ever_do_not_end_the_reading(self, running):
        for number in range(1, 9):
            step(running, number, seconds=float("inf"))
        step(running, 9)
        assert read(running).state.step == 9

    def test_a_folder_that_vanishes_is_told_and_found_again(self, running, tmp_path):
        step(running, 3)
        reader = read(running)
        running.path.rename(tmp_path / "away")
        reader._next_look_around = 0.0
        reader.look()
        assert reader.state.message == GONE.format(running.path)
        assert reader.state.step == 3
        (tmp_path / "away").rename(running.path)
        step(running, 4)
        reader.look()
        assert (reader.state.message, reader.state.step) == ("", 4)

    def test_a_folder_that_vanishes_while_it_is_looked_at_is_no_end_of_its_run(self, running, tmp_path, monkeypatch):
        step(running, 3)
        reader = read(running)

        def look_too_late(folder):
            folder.path.rename(tmp_path / "away")
            return is_running(folder)

        monkeypatch.setattr("modules.ui.models.RunReader.is_running", look_too_late)
        reader._look_around()
        assert (reader.state.message, reader.state.exit) == (GONE.format(running.path), None)
        assert reader.state.is_running

    def test_a_resumed_run_has_only_the_ranks_of_its_last_start(self, folder):
        for at, ranks in ((1000.0, (0, 1)), (2000.0, (0,))):
            for rank in ranks:
                tell(folder, "started", rank, at + 9, started=at)
                step(folder, 1, rank, at + 10)
        folder.write_exit("finished")
        assert [row.rank for row in read(folder).state.ranks] == [0]
        folder.exit_path.unlink()
        with RunLock(folder.lock_path):
            assert [row.rank for row in read(folder).state.ranks] == [0]

    def test_a_run_that_is_resumed_shows_nothing_of_what_it_did_last_until_it_says_what_it_does(self, folder):
        for rank in (0, 1):
            tell(folder, "started", rank, 999.0, started=990.0)
        for number in range(1, 11):
            step(folder, number)
            step(folder, number, rank=1)
        tell(folder, "status", text="Saving the model", at=1011.0)
        before = time.time()
        state = read(folder, process=SimpleNamespace(pid=1, poll=lambda: None)).state
        assert (state.phase, state.eta_seconds, state.ranks) == ("", None, [])
        assert (state.step, state.total) == (10, 100)
        assert state.started >= before

    def test_a_run_that_was_started_ends_with_its_process_also_where_its_folder_is_deleted(self, folder):
        process = SimpleNamespace(pid=1, returncode=None, poll=lambda: process.returncode)
        step(folder, 3)
        reader = read(folder, process=process)
        shutil.rmtree(folder.path)
        look_around(reader)
        assert (reader.state.is_running, reader.state.message) == (True, GONE.format(folder.path))
        process.returncode = 1
        look_around(reader)
        assert (reader.state.is_running, reader.state.message) == (False, GONE.format(folder.path))

    def test_a_run_that_was_found_ends_with_its_process_also_where_its_folder_is_gone(
        self, running, tmp_path, monkeypatch
    ):
        alive = {os.getpid()}
        monkeypatch.setattr("modules.ui.models.RunReader.is_alive", alive.__contains__)
        step(running, 3)
        reader = read(running)
        running.path.rename(tmp_path / "away")
        look_around(reader)
        assert reader.state.is_running
        alive.clear()
        look_around(reader)
        assert not reader.state.is_running
        (tmp_path / "away").rename(running.path)
        look_around(reader)
        assert reader.state.is_running

    def test_a_run_of_another_machine_goes_on_where_its_folder_is_gone(self, running, tmp_path, monkeypatch):
        monkeypatch.setattr("modules.session.RunLock.socket.gethostname", lambda: "elsewhere")
        step(running, 3)
        reader = read(running)
        running.path.rename(tmp_path / "away")
        look_around(reader)
        assert reader.state.is_running

    def test_a_run_killed_with_its_supervisor_has_ended_without_a_record(self, folder):
        step(folder, 3)
        state = read(folder).state
        assert (state.is_running, state.exit["kind"], state.phase) == (False, "lost", f"Failed: {NO_RECORD}")

    def test_a_long_run_is_read_in_pieces_and_wholly(self, running, monkeypatch):
        monkeypatch.setattr("modules.session.following.CHUNK_BYTES", 4096)
        for number in range(1, 201):
            step(running, number, total=200)
            step(running, number, rank=1, total=200)
        reader = RunReader(running)
        assert reader.look()
        assert reader.state.step < 50
        while reader.look():
            pass
        assert (len(reader.history), [row.step for row in reader.state.ranks]) == (200, [200, 200])

    def test_a_state_that_was_handed_out_does_not_change(self, running):
        tell(running, "warning", text="one")
        reader = read(running)
        before = reader.state
        tell(running, "warning", text="two")
        reader.look()
        assert [len(before.warnings), len(reader.state.warnings)] == [1, 2]

    def test_the_log_is_given_in_portions_and_not_flooded_with_steps(self, running):
        tell(running, "status", text="Training")
        for number in range(1, 31):
            step(running, number, at=1000.0 + number * 0.1)
        reader = read(running)
        lines, count = reader.log_since(0)
        assert [(line.rank, line.kind) for line in lines] == [(0, "status"), (0, "step")]
        tell(running, "status", rank=None, text="Stopping")
        reader.look()
        assert [line.text for line in reader.log_since(count)[0]] == ["Stopping"]

    def test_each_rank_has_steps_in_the_log_which_push_nothing_else_out_of_it(self, running, monkeypatch):
        monkeypatch.setattr("modules.ui.models.RunReader.MAX_LOG_LINES", 10)
        tell(running, "status", text="Training")
        reader = RunReader(running)
        for number in range(1, 41):
            for rank in range(3):
                step(running, number, rank=rank)
            reader.look()
        lines, count = reader.log_since(0)
        times = {rank: [line.time - 1000 for line in lines if line.rank == rank] for rank in range(3)}
        assert times == {0: [0, 1, 6, 11, 16, 21, 26, 31, 36], 1: times[2], 2: [16, 21, 26, 31, 36]}
        assert [line.time for line in lines] == sorted(line.time for line in lines)
        assert count == 1 + 3 * 8
        assert [(line.rank, line.time) for line in reader.log_since(count - 2)[0]] == [(1, 1036.0), (2, 1036.0)]

    def test_the_log_of_an_earlier_run_is_in_the_order_of_time(self, running):
        for rank, at in ((0, 1.0), (1, 2.0), (0, 3.0), (None, 2.5), (1, 4.0)):
            tell(running, "status", rank, at, text=f"{at}")
        assert [line.text for line in read(running).log_since(0)[0]] == ["1.0", "2.0", "2.5", "3.0", "4.0"]

    def test_the_traceback_of_a_failed_run_is_in_its_log_once(self, folder):
        step(folder, 3)
        folder.write_exit("failed", rank=0, kind="error", text="boom", traceback="ValueError: boom")
        reader = read(folder)
        reader._look_around()
        assert [line.text for line in reader.log_since(0)[0] if line.kind == "traceback"] == ["ValueError: boom"]


def test_what_is_read_of_a_run_comes_by_poll_however_fast_it_is(folder, monkeypatch):
    """Until then, the state is that set by `attach`."""

    def thread(target, args, **options):
        return SimpleNamespace(start=args[0].look)

    monkeypatch.setattr(run_model_module, "threading", SimpleNamespace(Event=threading.Event, Thread=thread))
    step(folder, 3)
    states, model = [], RunModel()
    model.subscribe(states.append)
    model.attach(folder.path)
    assert [state.step for state in states] == [0]
    model.poll()
    assert [state.step for state in states] == [0, 3]


class TestFindRuns:
    def test_running_ones_come_first_then_the_newest(self, tmp_path):
        for number, name in enumerate(["old", "new", "alive"]):
            folder = RunFolder(tmp_path / name)
            folder.create()
            step(folder, number + 1)
            if name != "alive":
                folder.write_exit("finished")
        for number, path in enumerate([*sorted((tmp_path / "old").rglob("*")), *sorted((tmp_path / "new").rglob("*"))]):
            os.utime(path, (number, number))
        (tmp_path / "no run").mkdir()
        with RunLock(tmp_path / "alive" / "run.lock"):
            found = find_runs(tmp_path)
        assert [(info.folder.name, info.status, info.step) for info in found] == [
            ("alive", "running", 3),
            ("new", "finished", 2),
            ("old", "finished", 1),
        ]

    def test_a_workspace_that_is_not_there_has_none(self, tmp_path):
        assert find_runs(tmp_path / "none") == []
        assert event_files(RunFolder(tmp_path / "none")) == []


class TestRefusals:
    def test_a_folder_with_an_earlier_run_is_refused(self, folder):
        (folder.models_dir / "model.safetensors").touch()
        with pytest.raises(UserError, match="holds a run already"):
            RunModel().start(config_from_values({"workspace_dir": str(folder.path)}))
        assert not folder.config_path.exists()

    def test_a_folder_in_use_is_refused(self, running):
        with pytest.raises(UserError, match="in use by another run"):
            RunModel().start(config_from_values({"workspace_dir": str(running.path)}))

    def test_what_is_no_run_can_not_be_attached(self, tmp_path):
        with pytest.raises(UserError, match="is not the folder of a run"):
            RunModel().attach(tmp_path)

    @pytest.mark.parametrize("name", ["stop", "sample"])
    def test_commands_need_a_run(self, name):
        with pytest.raises(UserError, match="No run is open"):
            RunModel().command(name)

    def test_a_run_that_goes_on_is_shown_so_at_once(self, running):
        """Closing the window then asks whether to stop it."""
        step(running, 3)
        model = RunModel()
        model.attach(running.path, is_running=True)
        assert model.state.is_running
        model.close()

    def test_a_run_of_another_machine_is_not_ended_by_force(self, running, monkeypatch):
        step(running, 3)
        model = RunModel()
        model.attach(running.path)
        until(model, lambda state: state.is_running)
        monkeypatch.setattr("modules.session.RunLock.socket.gethostname", lambda: "elsewhere")
        with pytest.raises(UserError, match="another machine"):
            model.force_stop()
        model.close()


class TestCrashReport:
    def test_it_names_rank_reason_and_remedy_with_the_last_lines(self, folder):
        folder.log_path(1).write_text("\n".join(f"line {number}" for number in range(100)))
        folder.write_exit("failed", rank=1, kind="killed", text="Rank 1 was killed by SIGKILL.", signal="SIGKILL")
        report = crash_report(folder.path)
        for part in ("rank: 1", "signal: SIGKILL", "then start again; there is no backup", "line 99", "line 60"):
            assert part in report
        assert "line 59\n" not in report

    def test_a_run_without_any_record_has_a_report(self, tmp_path):
        assert "no record" in crash_report(tmp_path)


def test_the_run_model_needs_neither_tk_nor_torch():
    code = (
        "import sys, modules.ui.models.RunModel, modules.session.crash_report;"
        "print({'torch', 'tkinter', 'diffusers', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


class TestWhatTheSystemRefuses:
    """Errors of the disk or the system become messages, not exceptions in the window."""

    @pytest.fixture
    def config(self, folder):
        return config_from_values({"workspace_dir": str(folder.path), "concepts": [{"path": "pictures"}]})

    def test_a_log_that_can_not_be_written_is_named(self, folder, config):
        folder.window_log_path.mkdir()
        with pytest.raises(UserError, match=r"window\.log.* can't be written .*choose another folder"):
            RunModel().start(config)

    def test_a_folder_that_can_not_be_read_is_named(self, folder, config, monkeypatch):
        def refuse(*arguments):
            raise PermissionError(13, "Permission denied", str(folder.backup_dir))

        monkeypatch.setattr(RunFolder, "refuse_earlier_run", refuse)
        with pytest.raises(UserError, match=r"workspace_dir .*run.* can't be read \(Permission denied\)"):
            RunModel().start(config)
        monkeypatch.setattr(run_model_module, "event_files", refuse)
        with pytest.raises(UserError, match=r"run.* can't be read \(Permission denied\)"):
            RunModel().attach(folder.path)

    def test_a_process_that_can_not_be_made_is_told(self, config, monkeypatch):
        def refuse(*arguments, **options):
            raise BlockingIOError(11, "Resource temporarily unavailable")

        monkeypatch.setattr(run_model_module.subprocess, "Popen", refuse)
        model = RunModel()
        with pytest.raises(UserError, match=r"can't be started \(Resource temporarily unavailable\): close"):
            model.start(config)
        assert not model.is_running

    def test_on_windows_a_run_has_a_console_that_nobody_sees(self, folder, monkeypatch):
        """Without a console, Windows would open a black window for each process of the run."""
        asked = []
        monkeypatch.setattr(run_model_module.subprocess, "CREATE_NO_WINDOW", 0x08000000, raising=False)
        monkeypatch.setattr(run_model_module.subprocess, "CREATE_NEW_PROCESS_GROUP", 0x200, raising=False)
        monkeypatch.setattr(run_model_module.subprocess, "DETACHED_PROCESS", 0x8, raising=False)
        monkeypatch.setattr(run_model_module.subprocess, "Popen", lambda *command, **options: asked.append(options))
        monkeypatch.setattr("modules.machine.own_session.os", SimpleNamespace(name="nt"))
        run_model_module.start_supervisor(folder, folder.config_path, False, 0.0)
        assert asked[0]["creationflags"] == 0x08000000 | 0x200

    def test_a_run_writes_its_log_in_the_encoding_that_the_window_reads(self, folder, tmp_path, monkeypatch):
        (tmp_path / "scripts").mkdir()
        (tmp_path / "scripts" / "train.py").write_text("print('f\\u00fcchse, \\u72d0, \\udcff')", encoding="utf-8")
        monkeypatch.setattr(run_model_module, "ROOT", tmp_path)
        monkeypatch.setenv("PYTHONIOENCODING", "cp1252")  # as on Windows
        run_model_module.start_supervisor(folder, folder.config_path, False, 0.0).wait(60)
        assert folder.window_log_path.read_text(encoding="utf-8").strip() == "füchse, 狐, \\udcff"

    def test_a_process_that_ends_by_itself_is_ended_on_windows_too(self, folder, monkeypatch):
        def refuse(pid, number):
            raise OSError(22, "The parameter is incorrect")  # Windows's error for a process that is gone

        monkeypatch.setattr(run_model_module.os, "kill", refuse)
        run_model_module._end(read(folder), 1)
        assert folder.read_exit()["status"] == "stopped"


# --- runs with toy ranks (tests/support/toy_run.py); test_as_a_person.py has real runs --------------------------------


@pytest.fixture
def values(tmp_path):
    """The settings of a quick run."""
    return {
        "workspace_dir": str(tmp_path / "run"),
        "concepts": [{"path": str(tmp_path / "pictures")}],
        "max_steps": 6,
        "enable_multi_gpu": False,
    }


@pytest.fixture
def toy_chorus(tmp_path, monkeypatch):
    """A copy of Chorus with toy ranks; all processes that the test starts end with it."""
    mark = secrets.token_hex(8)
    monkeypatch.setenv(MARK, mark)
    yield make_toy_chorus(tmp_path / "chorus")
    while pids := find_processes({MARK: mark}):  # repeatedly, because they may have started others
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


@pytest.fixture
def open_model(values, toy_chorus, monkeypatch):
    """A function that starts a run like the window: open_model(resume=False, **changes)."""
    monkeypatch.setattr(run_model_module, "ROOT", toy_chorus)
    models = []

    def start(resume=False, **changes):
        model = RunModel()
        models.append(model)
        model.start(config_from_values({**values, **changes}), resume)
        return model

    yield start
    for model in models:
        model.close()


TWO_RANKS = {"enable_multi_gpu": True, "world_size": 2}
ENDLESS = {"max_steps": None}


@linux
def test_two_ranks_are_started_followed_to_their_end_and_shown_again(open_model):
    model = open_model(**TWO_RANKS)
    shown = []
    model.subscribe(lambda state: shown.append((state.step, state.is_running)))
    state = until(model, lambda state: state.exit is not None and not state.is_running)
    assert (state.exit["status"], state.step, state.total) == ("finished", 6, 6)
    assert [(row.rank, row.device, row.step, row.state) for row in state.ranks] == [
        (0, "cpu", 6, "finished"),
        (1, "cpu", 6, "finished"),
    ]
    assert [sample.step for sample in state.samples] == [3, 6]
    assert all(sample.path.is_file() for sample in state.samples)
    assert shown[-1] == (6, False)

    again = RunModel()
    again.attach(state.folder)
    seen = until(again, lambda state: state.exit is not None)
    assert again.history.points(100) == model.history.points(100)
    assert len(again.history) == 6
    assert (seen.phase, seen.samples, seen.backups) == (state.phase, state.samples, state.backups)
    again.close()


@linux
def test_one_device_runs_under_the_supervisor_stops_and_goes_on(open_model):
    model = open_model(**ENDLESS)
    until(model, lambda state: state.step >= 2)
    assert pid_of_rank(RunFolder(model.state.folder), 0) != model._reader.starting_pid()
    model.stop()
    assert model.state.is_stopping
    state = until(model, lambda state: not state.is_running)
    assert state.exit["status"] == "stopped", state.exit
    assert not state.is_stopping
    assert state.backups

    stopped_at = state.step
    model = open_model(resume=True, max_steps=stopped_at + 3)
    assert model.state.exit is None  # not the end of the previous run
    state = until(model, lambda state: state.exit is not None and not state.is_running)
    assert (state.exit["status"], state.step) == ("finished", stopped_at + 3)
    assert len(model.history) == stopped_at + 3


def test_a_run_is_told_when_it_was_started_so_that_a_stop_while_it_loads_is_for_it(values, tmp_path, monkeypatch):
    script = tmp_path / "scripts" / "train.py"
    script.parent.mkdir()
    script.write_text("import os; print(os.environ['CHORUS_STARTED'], flush=True)")
    monkeypatch.setattr(run_model_module, "ROOT", tmp_path)
    folder = RunFolder(values["workspace_dir"])
    before = time.time()
    model = RunModel()
    model.start(config_from_values(values))
    time.sleep(0.1)  # file times are rounded to ticks of the system clock
    model.stop()
    model.close()  # it would repeat its command
    times = [command.stat().st_mtime for command in folder.commands_dir.glob("*.cmd")]  # others are not finished
    wait_until(lambda: folder.window_log_path.read_text().endswith("\n"))
    assert before <= float(folder.window_log_path.read_text()) <= min(times)


@linux
def test_a_window_that_dies_leaves_the_run_to_the_next_one_which_can_end_it_by_force(values, toy_chorus, tmp_path):
    """The window is a separate process that is killed as in a crash, and the rank hangs when asked to end."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**values, **ENDLESS}))
    code = (
        "import pathlib, time; from modules.config.files import load_config;"
        "from modules.ui.models import RunModel as module;"
        f"module.ROOT = pathlib.Path({str(toy_chorus)!r});"
        f"module.RunModel().start(load_config({str(config)!r})); print('started', flush=True); time.sleep(600)"
    )
    window = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert window.stdout.readline() == "started\n"
    os.killpg(window.pid, signal.SIGKILL)
    window.wait()
    folder = RunFolder(tmp_path / "run")
    wait_until(folder.event_path(0).exists)
    model = RunModel()
    model.attach(folder.path)
    until(model, lambda state: state.step >= 3)
    assert len(model.history) >= 3
    os.kill(pid_of_rank(folder, 0), signal.SIGSTOP)
    model.force_stop()
    state = until(model, lambda state: not state.is_running)
    assert state.exit["status"] == "stopped"
    model.close()


@linux
def test_a_killed_rank_is_named_within_seconds(open_model):
    model = open_model(**TWO_RANKS, **ENDLESS)
    until(model, lambda state: state.step >= 2 and len(state.ranks) == 2)
    killed = time.monotonic()
    os.kill(pid_of_rank(RunFolder(model.state.folder), 1), signal.SIGKILL)
    state = until(model, lambda state: state.exit is not None)
    assert time.monotonic() - killed < SECONDS_TO_TELL * LEEWAY
    assert (state.exit["rank"], state.exit["kind"]) == (1, "killed")
    assert [row.state for row in state.ranks] == ["ended", "killed"]
    assert "rank: 1" in crash_report(state.folder)


@linux
def test_a_start_that_is_refused_by_the_run_says_why(open_model):
    model = open_model(concepts=[])
    state = until(model, lambda state: state.exit is not None)
    assert state.exit["kind"] == "user_error"
    assert "concepts" in state.exit["text"]
    assert not state.is_running
