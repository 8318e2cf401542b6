"""A queue that works, with real processes: each entry is done once, whoever is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from modules.config.TrainConfig import TrainConfig
from modules.machine.devices import Gpu
from modules.machine.Machine import Machine
from modules.queue.entry_events import append_event, read_events
from modules.queue.ProcessLock import ProcessLock, boot_id, read_holder
from modules.queue.QueueEntry import QueueEntry
from modules.queue.QueueRunner import QueueRunner
from modules.queue.TrainingQueue import EntryOptions, TrainingQueue
from modules.session.following import RunFollower
from modules.session.RunFolder import RunFolder
from modules.session.StepInfo import StepInfo
from tests.support.backup_files import write_backup
from tests.support.queued_run import expected_model, start_queue
from tests.support.waiting import wait_until

posix = pytest.mark.skipif(os.name == "nt", reason="kills processes by signals")


@pytest.fixture
def queue(tmp_path) -> TrainingQueue:
    return TrainingQueue(tmp_path / "queue")


def add(queue: TrainingQueue, seed: int, steps: int = 20, **options) -> QueueEntry:
    config = TrainConfig(workspace_dir=str(queue.path.parent / f"run-{seed}"), seed=seed, max_steps=steps)
    return queue.add(config, EntryOptions(name=str(seed), **options))


def plant(queue: TrainingQueue, **faults: str) -> None:
    (queue.path.parent / "fault.json").write_text(json.dumps({seed[1:]: fault for seed, fault in faults.items()}))


def work(queue: TrainingQueue):
    queue.set_on(True)
    return start_queue(queue)


def work_off(queue: TrainingQueue) -> dict[str, str]:
    """Work the queue off, and return the state of each entry by its name."""
    assert work(queue).wait() == 0
    return states(queue)


def states(queue: TrainingQueue) -> dict[str, str]:
    return {entry.name: entry.state for entry in queue.entries()}


def steps_of(entry: QueueEntry) -> list[int]:
    records, _ = RunFollower(RunFolder(entry.run_folder)).read()
    return [record.event.step for record in records if isinstance(record.event, StepInfo)]


def is_undisturbed(entry: QueueEntry) -> bool:
    """Whether its model is what a run without disturbance gives: every step once, in order, from the same state."""
    model = Path(entry.run_folder, "models", "model.txt")
    return model.read_text() == expected_model(entry.config())


def ends(entry: QueueEntry) -> list[str]:
    return [event["status"] for event in read_events(entry.events_path) if event["type"] == "ended"]


def starts(entry: QueueEntry) -> list[dict]:
    return [event for event in read_events(entry.events_path) if event["type"] == "started"]


def kill(pid: int) -> None:
    if pid:
        os.kill(pid, signal.SIGKILL)


def pid_of(entry: QueueEntry) -> int:
    """The process that trains an entry; 0 if none does."""
    holder = read_holder(entry.claim_path)
    return holder.pid if holder is not None and holder.is_alive else 0


@posix
def test_entries_run_one_after_the_other_in_their_order_and_a_failed_one_stops_none(queue):
    entries = [add(queue, seed) for seed in (1, 2, 3)]
    queue.move("3", -1)
    plant(queue, s3="fail")
    assert work_off(queue) == {"1": "finished", "3": "failed", "2": "finished"}
    first, third, second = queue.entries()
    assert third.record.text == "It was told to fail."
    times = [[event["time"] for event in read_events(entry.events_path)[1:]] for entry in (first, third, second)]
    assert times == sorted(times)
    assert all(is_undisturbed(entry) for entry in (entries[0], entries[1]))
    assert not queue.settings().is_on

    plant(queue)
    queue.retry(third.id)
    assert work_off(queue)["3"] == "finished"
    assert ends(third) == ["failed", "finished"]


@posix
def test_killed_runs_and_a_killed_queue_end_as_if_nothing_had_happened(queue):
    entries = [add(queue, seed, steps=40) for seed in (1, 2, 3)]
    runner = work(queue)
    wait_until(lambda: len(steps_of(entries[0])) >= 12)
    kill(pid_of(entries[0]))  # the run: the queue starts it again from its backup
    wait_until(lambda: len(starts(entries[0])) == 2 and ends(entries[0]))
    wait_until(lambda: len(steps_of(entries[1])) >= 3)
    kill(runner.pid)  # the queue: its run goes on
    runner.wait()
    survivor = pid_of(entries[1])
    second = work(queue)
    wait_until(lambda: ends(entries[1]))
    assert starts(entries[1])[-1]["pid"] == survivor
    wait_until(lambda: len(steps_of(entries[2])) >= 7)
    kill(second.pid)
    kill(pid_of(entries[2]))  # all of them, as at a power failure
    second.wait()
    wait_until(lambda: not pid_of(entries[2]))
    assert states(queue)["3"] == "interrupted"
    assert set(work_off(queue).values()) == {"finished"}
    for entry in entries:
        assert ends(entry) == ["finished"]
        assert is_undisturbed(entry)
    steps = steps_of(entries[0])
    assert 40 < len(steps) < 60  # it went on from a backup, not from its beginning


@posix
def test_two_processes_for_one_queue_start_nothing_twice(queue):
    entries = [add(queue, seed) for seed in (1, 2)]
    queue.set_on(True)
    runners = [start_queue(queue) for _ in range(3)]
    assert sorted(runner.wait() for runner in runners) == [0, 1, 1]
    assert [len(starts(entry)) for entry in entries] == [1, 1]
    assert [steps_of(entry) for entry in entries] == [list(range(1, 21))] * 2


@posix
def test_a_pause_and_a_limit_stop_a_run_with_a_backup(queue):
    paused, limited = add(queue, 1, steps=10_000), add(queue, 2, steps=10_000, limit_hours=0.1 / 3600)
    runner = work(queue)
    wait_until(lambda: steps_of(paused))
    queue.change(paused.id, held=True)
    runner.wait()
    assert states(queue) == {"1": "paused", "2": "limit"}
    assert "its limit of 2.77778e-05 h; step" in queue.entry("2").record.text
    step = steps_of(limited)[-1]
    assert (Path(limited.run_folder) / "backup" / f"step-{step:09d}").is_dir()
    again = queue.retry(paused.id)
    assert again.state == "waiting"
    queue.edit(again.id, TrainConfig(workspace_dir=paused.run_folder, seed=1, max_steps=steps_of(paused)[-1] + 5))
    assert work_off(queue)["1"] == "finished"
    assert is_undisturbed(queue.entry("1"))


@posix
def test_a_run_that_dies_again_and_again_has_failed(queue):
    entry = add(queue, 1)
    plant(queue, s1="die")
    assert work_off(queue) == {"1": "failed"}
    assert len(starts(entry)) == 3
    assert "ended 3 times at step 0 without a reason (killed by SIGKILL)" in queue.entry("1").record.text


@posix
def test_a_run_stopped_by_a_signal_goes_on_after_a_reboot_only(queue):
    entry = add(queue, 1)
    append_event(entry.events_path, "started", boot="an earlier one", owns=True)
    append_event(entry.events_path, "ended", status="signal", boot="an earlier one")
    other = add(queue, 2)
    append_event(other.events_path, "started", boot=boot_id(), owns=True)
    append_event(other.events_path, "ended", status="signal", boot=boot_id())
    assert work_off(queue) == {"1": "finished", "2": "stopped"}


@posix
def test_a_run_that_others_have_made_in_the_folder_is_never_touched(queue):
    entry = add(queue, 1)
    theirs = write_backup(Path(entry.run_folder) / "backup", 3)
    for _ in range(2):
        assert work_off(queue) == {"1": "failed"}
        assert "holds a run already" in queue.entry("1").record.text
        queue.retry("1")
    assert theirs.is_dir()


@posix
def test_a_run_without_a_backup_begins_again_beside_what_it_has_saved(queue):
    entry = add(queue, 1)
    folder = RunFolder(entry.run_folder)
    append_event(entry.events_path, "started", boot=boot_id(), owns=True)
    folder.create()
    (folder.models_dir / "model-step000003.safetensors").touch()
    assert work_off(queue) == {"1": "finished"}
    assert is_undisturbed(entry)
    assert (folder.path.parent / "run-1-unfinished-1" / "models" / "model-step000003.safetensors").exists()


# --- what is started, without processes -------------------------------------------------------------------------------


class Starts:
    """Claims the entries that a queue starts, as their processes would."""

    def __init__(self):
        self.devices: dict[str, tuple[int, ...]] = {}
        self.claims: dict[str, ProcessLock] = {}

    def __call__(self, entry, devices):
        self.devices[entry.name] = tuple(devices)
        self.claims[entry.name] = ProcessLock(entry.claim_path)
        assert self.claims[entry.name].take()
        append_event(entry.events_path, "started", devices=list(devices), boot=boot_id(), pid=os.getpid())
        return self

    pid = os.getpid()

    def poll(self):
        return None


@pytest.fixture
def started(queue):
    starts = Starts()
    gpus = tuple(Gpu(index, "GPU", f"GPU-{index}", 2**34, index) for index in range(4))
    starts.runner = QueueRunner(queue, starts, Machine(gpus=gpus, cores=8), lambda text: None)
    queue.entries_dir.mkdir(parents=True)
    yield starts
    for claim in starts.claims.values():
        claim.release()


def test_side_by_side_runs_get_different_gpus_and_none_overtakes(queue, started):
    for seed, gpus in ((1, 1), (2, (0, 2)), (3, 2), (4, 1)):
        add(queue, seed, gpus=gpus)
    queue.set_on(True)
    queue.set_side_by_side(True)
    assert started.runner.step()
    assert started.devices == {"1": (0,)}  # 2 waits for GPU 0, and 3 for 2
    queue.change("2", held=True)
    assert started.runner.step()
    assert started.devices == {"1": (0,), "3": (1, 2), "4": (3,)}


def test_one_after_the_other_starts_one(queue, started):
    for seed in (1, 2):
        add(queue, seed, gpus=1)
    queue.set_on(True)
    assert started.runner.step()
    assert started.runner.step()
    assert started.devices == {"1": (0,)}


def test_an_entry_waits_for_its_time_and_a_held_one_for_good(queue, started, monkeypatch):
    add(queue, 1, not_before=time.time() + 3600)
    add(queue, 2, held=True)
    queue.set_on(True)
    assert started.runner.step()  # it waits
    assert started.devices == {}
    now = time.time() + 3601
    monkeypatch.setattr("modules.queue.QueueRunner.time.time", lambda: now)
    assert started.runner.step()
    assert started.devices == {"1": (0,)}


def test_a_process_that_is_killed_before_it_begins_is_started_again(queue, started, monkeypatch):
    entry = add(queue, 1)
    queue.set_on(True)

    class Killed:
        pid = 2**22

        def poll(self):
            return -9

    monkeypatch.setattr(started.runner, "_start", lambda entry, devices: Killed())
    for _ in range(2):
        assert started.runner.step()
    assert states(queue) == {"1": "waiting"}
    assert [event["type"] for event in read_events(entry.events_path)] == ["added", "interrupted"]
    for _ in range(4):
        started.runner.step()
    assert states(queue) == {"1": "failed"}  # at the third time


def test_a_queue_that_is_turned_off_starts_nothing_and_its_process_ends(queue, started):
    add(queue, 1)
    assert not started.runner.step()
    assert started.devices == {}


# --- proof ------------------------------------------------------------------------------------------------------------


@posix
@pytest.mark.proof
@pytest.mark.parametrize("seed", range(10))
def test_ten_reboots_at_random_moments_change_nothing(queue, seed):
    """A reboot is played by killing the queue and all its runs, one of them also by killing only one of the two."""
    draw = random.Random(seed)
    entries = [add(queue, number, steps=60) for number in range(3)]
    queue.set_side_by_side(bool(seed % 2))
    for _ in range(10):
        runner = work(queue)
        time.sleep(draw.uniform(0.05, 2.5))
        victims = draw.choice((("queue", "runs"), ("queue",), ("runs",)))
        if "queue" in victims:
            kill(runner.pid)
        if "runs" in victims:
            for entry in entries:
                kill(pid_of(entry))
        if "queue" not in victims:
            kill(runner.pid)
        runner.wait()
    work_off(queue)
    assert [(entry.state, entry.record.text) for entry in queue.entries()] == [("finished", "step 60 of 60")] * len(
        entries
    )
    for entry in entries:
        assert ends(entry) == ["finished"]
        assert is_undisturbed(entry)
