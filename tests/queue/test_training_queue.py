"""The files of a queue: what is added, its order, its state, and which GPUs it gets."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from modules.config.errors import UserError
from modules.config.TrainConfig import TrainConfig
from modules.machine.devices import Gpu
from modules.machine.Machine import Machine
from modules.queue.entry_events import append_event, read_events, record_of
from modules.queue.gpus import describe_gpus, devices_for, gpus_of, gpus_text, read_gpus, with_gpus
from modules.queue.ProcessLock import ProcessLock, boot_id, is_taken, read_holder
from modules.queue.TrainingQueue import EntryOptions, TrainingQueue
from modules.session.RunFolder import RunFolder
from tests.support.backup_files import write_backup

FOUR_GPUS = Machine(gpus=tuple(Gpu(index, "GPU", f"GPU-{index}", 2**34, index) for index in range(4)), cores=8)
CPU = Machine(cores=4)


@pytest.fixture
def queue(tmp_path, monkeypatch) -> TrainingQueue:
    monkeypatch.chdir(tmp_path)
    return TrainingQueue(tmp_path / "queue")


def config_of(**values) -> TrainConfig:
    return TrainConfig(workspace_dir="runs/cat", **values)


def names(queue: TrainingQueue) -> list[str]:
    return [entry.name for entry in queue.entries()]


def test_an_entry_keeps_the_settings_it_was_added_with(queue, tmp_path):
    (tmp_path / "images").mkdir()
    config = config_of(seed=3, concepts=[{"path": "images"}])
    entry = queue.add(config, EntryOptions(name="cat", limit_hours=2.0, not_before=5.0))
    config.seed = 4
    found = queue.entries()[0]
    assert (found.name, found.state, found.limit_hours, found.not_before) == ("cat", "waiting", 2.0, 5.0)
    kept = entry.config()
    assert (kept.seed, kept.concepts[0].path) == (3, str(tmp_path / "images"))
    assert kept.workspace_dir == found.run_folder == str(tmp_path / "runs" / "cat")


def test_each_entry_has_a_run_folder_of_its_own(queue, tmp_path):
    write_backup(tmp_path / "runs" / "cat" / "backup", 3)  # of an earlier run
    folders = [os.path.basename(queue.add(config_of()).run_folder) for _ in range(3)]
    assert folders == ["cat-2", "cat-3", "cat-4"]


def test_the_exponent_in_the_folder_of_a_run_of_a_grid_is_not_counted_up(queue, tmp_path):
    name = "cat-learning_rate=1e-3"
    write_backup(tmp_path / "runs" / name / "backup", 3)  # of an earlier run
    config = config_of()
    config.workspace_dir = str(tmp_path / "runs" / name)
    folders = [os.path.basename(queue.add(config).run_folder) for _ in range(2)]
    assert folders == [f"{name}-2", f"{name}-3"]


def test_an_entry_may_go_on_with_a_run_that_exists(queue, tmp_path):
    write_backup(tmp_path / "runs" / "cat" / "backup", 3)
    entry = queue.add(config_of(), EntryOptions(resumes=True))
    assert entry.run_folder == str(tmp_path / "runs" / "cat")
    with pytest.raises(UserError, match="is that of another entry"):
        queue.add(config_of(), EntryOptions(resumes=True))


def test_entries_move_and_are_copied_next_to_the_original(queue):
    ids = {name: queue.add(config_of(), EntryOptions(name=name)).id for name in "abc"}
    queue.move(ids["c"], -1)
    assert names(queue) == ["a", "c", "b"]
    queue.move(ids["a"], 10)
    assert names(queue) == ["c", "b", "a"]
    queue.move_to(ids["a"], 0)
    assert names(queue) == ["a", "c", "b"]
    copied = queue.copy("c")
    assert names(queue) == ["a", "c", "c (2)", "b"]
    assert copied.run_folder != queue.entry(ids["c"]).run_folder
    queue.add(config_of(), EntryOptions(name="d"))
    assert names(queue)[-1] == "d"
    queue.remove("c (2)")
    assert names(queue) == ["a", "c", "b", "d"]


def test_edited_settings_replace_those_of_an_entry(queue):
    entry = queue.add(config_of(seed=1))
    edited = replace(entry.config(), seed=9, enable_multi_gpu=True, world_size=2)
    queue.edit(entry.id, edited)
    (found,) = queue.entries()
    assert (found.config().seed, found.gpus, found.run_folder) == (9, 2, entry.run_folder)
    assert [path.name for path in entry.path.glob("*.yaml")] == [found.settings]


def test_what_was_started_keeps_its_folder_when_edited(queue):
    entry = queue.add(config_of())
    append_event(entry.events_path, "started", boot=boot_id())
    append_event(entry.events_path, "ended", status="failed", text="no images")
    edited = queue.edit(entry.id, replace(entry.config(), workspace_dir="elsewhere"))
    assert edited.run_folder == edited.config().workspace_dir == entry.run_folder


def test_running_and_finished_entries_are_not_edited_or_retried(queue):
    entry = queue.add(config_of())
    claim = ProcessLock(entry.claim_path)
    assert claim.take()
    assert queue.entry(entry.id).state == "running"
    for refused in (
        lambda: queue.edit(entry.id, config_of()),
        lambda: queue.retry(entry.id),
        lambda: queue.remove("cat"),
    ):
        with pytest.raises(UserError, match="is running"):
            refused()
    claim.release()
    append_event(entry.events_path, "started")
    append_event(entry.events_path, "ended", status="finished")
    with pytest.raises(UserError, match="has finished"):
        queue.edit(entry.id, config_of())


def test_a_retried_entry_waits_again_and_its_limit_begins_anew(queue):
    entry = queue.add(config_of(), EntryOptions(limit_hours=1))
    append_event(entry.events_path, "started", boot=boot_id())
    append_event(entry.events_path, "ended", status="limit", text="Stopped")
    assert queue.entry(entry.id).state == "limit"
    again = queue.retry(entry.id)
    assert (again.state, again.record.seconds, again.record.was_started) == ("waiting", 0, True)


def test_several_machines_and_impossible_limits_are_refused(queue):
    with pytest.raises(UserError, match="num_nodes 2: the queue"):
        queue.add(config_of(enable_multi_gpu=True, num_nodes=2))
    with pytest.raises(UserError, match="limit of 0 hours"):
        queue.add(config_of(), EntryOptions(limit_hours=0))
    assert queue.entries() == []


def test_a_damaged_entry_is_named_and_the_others_stay(queue):
    damaged, good = queue.add(config_of()), queue.add(config_of())
    (damaged.path / "entry.json").write_text('{"name": 3}')
    assert [entry.id for entry in queue.entries()] == [good.id]
    assert len(queue.damaged()) == 1
    assert damaged.id in queue.damaged()[0]


def test_a_line_that_a_power_failure_cut_off_costs_only_itself(tmp_path):
    path = tmp_path / "events.jsonl"
    append_event(path, "started", boot=boot_id())
    with open(path, "ab") as file:
        file.write(b'{"time": 1, "type": "en')
    append_event(path, "ended", status="failed", text="no")
    assert [event["type"] for event in read_events(path)] == ["started", "ended"]


SIGNALED = {"type": "ended", "time": 9.0, "status": "signal"}


@pytest.mark.parametrize(
    ("events", "end"),
    [
        ([], ""),
        ([{"type": "started", "time": 1.0}], ""),
        ([{"type": "ended", "time": 9.0, "status": "paused"}], ""),
        ([SIGNALED | {"boot": boot_id()}], "signal"),  # by a person
        ([SIGNALED | {"boot": "another"}], ""),  # by the machine, as it was shut down
        ([{"type": "ended", "time": 9.0, "status": "failed"}, {"type": "retried", "time": 9.5}], ""),
    ],
)
def test_what_the_events_of_an_entry_come_to(events, end):
    assert record_of(events).end == end


def test_deaths_without_a_reason_count_only_at_the_same_step_and_if_seen():
    started, seen = {"type": "started", "time": 1.0}, {"type": "interrupted", "time": 2.0, "seen": 7}
    unseen = {"type": "interrupted", "time": 2.0}
    assert record_of([started, seen, started, seen]).fruitless == 2
    assert record_of([started, seen, started, seen | {"step": 5}]).fruitless == 1
    assert record_of([started, seen, started, seen | {"seen": 8}]).fruitless == 1  # by another process of the queue
    assert record_of([started, unseen, started, unseen]).fruitless == 0


def test_a_lock_says_who_holds_it_and_is_free_once_released(tmp_path):
    lock, other = ProcessLock(tmp_path / "lock"), ProcessLock(tmp_path / "lock")
    assert lock.take()
    assert not other.take(0)
    holder = read_holder(tmp_path / "lock")
    assert (holder.pid, holder.boot, holder.is_alive) == (os.getpid(), boot_id(), True)
    assert not replace(holder, boot="an earlier one").is_alive
    lock.release()
    assert not is_taken(tmp_path / "lock")
    assert other.take()
    other.release()


def test_a_disk_without_locks_goes_by_the_process_and_the_boot(tmp_path, monkeypatch):
    import errno

    def refuse(*arguments):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("modules.queue.ProcessLock.lock_patiently", refuse)
    monkeypatch.setattr("modules.queue.ProcessLock.is_held", lambda path: None)
    lock = ProcessLock(tmp_path / "lock")
    assert lock.take()
    assert is_taken(lock.path)
    assert not ProcessLock(lock.path).take()
    lock.path.write_text(f"{os.getpid()} earlier-boot {read_holder(lock.path).host}\n")
    assert not is_taken(lock.path)


@pytest.mark.parametrize(
    ("text", "gpus"), [("all", "all"), (" 2 ", 2), ("0,2", (0, 2)), ("2,", (2,)), ("3, 1", (1, 3))]
)
def test_gpus_are_written_as_in_the_terminal(text, gpus):
    assert read_gpus(text) == gpus
    assert read_gpus(gpus_text(gpus)) == gpus


@pytest.mark.parametrize(
    ("gpus", "here", "on_the_cpu"),
    [
        ("all", "all GPUs", "CPU, all cores"),
        (1, "1 GPU", "CPU, 1 process"),
        ((0, 2), "GPU 0, 2", "CPU, 2 processes"),
    ],
)
def test_a_machine_without_gpus_is_not_said_to_train_on_them(gpus, here, on_the_cpu):
    assert describe_gpus(gpus, True) == here
    assert describe_gpus(gpus, False) == on_the_cpu


@pytest.mark.parametrize("text", ["", "0", "-1", "two", "1,1", ",", "1 2", "99999"])
def test_other_texts_are_no_gpus(text):
    with pytest.raises(UserError, match="write all, a number"):
        read_gpus(text)


@pytest.mark.parametrize(
    ("values", "gpus"),
    [
        ({}, 1),
        ({"device_indexes": [3]}, (3,)),
        ({"enable_multi_gpu": True}, "all"),
        ({"enable_multi_gpu": True, "world_size": 2}, 2),
        ({"enable_multi_gpu": True, "device_indexes": [2, 0]}, (0, 2)),
    ],
)
def test_the_settings_choose_the_gpus_unless_a_person_does(values, gpus):
    assert gpus_of(config_of(**values)) == gpus


@pytest.mark.parametrize(
    ("gpus", "taken", "devices"),
    [
        ("all", (), (0, 1, 2, 3)),
        ("all", (1,), None),
        (2, (0,), (1, 2)),
        (2, (0, 1, 2), None),
        ((1, 3), (0,), (1, 3)),
        ((1, 3), (3,), None),
        (8, (), (0, 1, 2, 3)),  # the run says that there are only four
    ],
)
def test_entries_side_by_side_get_different_gpus(gpus, taken, devices):
    assert devices_for(gpus, FOUR_GPUS, taken) == devices


def test_without_gpus_each_rank_takes_a_core():
    assert devices_for(2, CPU, ()) == (0, 1)
    assert devices_for(3, CPU, (0, 1)) is None
    assert devices_for("all", CPU, (0,)) is None
    assert devices_for((5, 7), CPU, (0,)) == (1, 2)


def test_a_run_trains_on_what_it_got():
    def chosen(machine, gpus, devices):
        config = with_gpus(config_of(device_indexes=[3]), gpus, devices, machine)
        return config.enable_multi_gpu, config.device_indexes, config.world_size

    assert chosen(FOUR_GPUS, 1, (2,)) == (False, [2], None)
    assert chosen(FOUR_GPUS, 2, (1, 3)) == (True, [1, 3], None)
    assert chosen(FOUR_GPUS, "all", (0, 1, 2, 3)) == (True, [], None)
    assert chosen(FOUR_GPUS, 8, (0, 1, 2, 3)) == (True, [0, 1, 2, 3], 8)
    assert chosen(CPU, 2, (0, 1)) == (True, [], 2)
    assert chosen(CPU, 1, (3,)) == (False, [], None)


def test_a_queue_is_turned_off_only_if_nothing_is_left(queue):
    called = []
    entry = queue.add(config_of())
    queue.set_on(True)
    assert not queue.turn_off_if_done(lambda: called.append(1))
    append_event(entry.events_path, "ended", status="failed")
    assert queue.turn_off_if_done(lambda: called.append(2))
    assert (called, queue.settings().is_on) == ([2], False)


def test_an_entry_is_found_by_its_name_or_the_beginning_of_it(queue):
    first, _ = (queue.add(config_of(), EntryOptions(name=name)) for name in ("cat rank 4", "cat rank 8"))
    assert queue.entry("cat rank 4").id == queue.entry(first.id).id == first.id
    for name, reason in (("cat", "names 2 entries"), ("dog", "names no entry")):
        with pytest.raises(UserError, match=reason):
            queue.entry(name)


def test_the_queue_is_plain_json(queue):
    entry = queue.add(config_of(), EntryOptions(gpus=(0, 2)))
    queue.set_side_by_side(True)
    assert json.loads((entry.path / "entry.json").read_bytes())["gpus"] == [0, 2]
    assert json.loads((queue.path / "queue.json").read_bytes()) == {"is_on": False, "side_by_side": True, "order": []}
    assert RunFolder(entry.run_folder).path.name == "cat"
