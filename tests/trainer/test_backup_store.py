from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from modules.machine.architectures import load_architectures
from modules.machine.memory.PassingMemory import PassingMemory
from modules.machine.memory.RunMemory import RunMemory
from modules.session.backups import damage
from modules.session.manifest import check_manifest, write_manifest
from modules.trainer.BackupStore import BackupStore
from modules.trainer.TrainingError import DamagedBackup, TrainingError
from modules.weights.safe import save_tensors
from tests.support.backup_files import state_of

ROOT = Path(__file__).resolve().parents[2]
WRITES_WITHOUT_END = """
import itertools, sys
from pathlib import Path
import torch
from modules.trainer.BackupStore import BackupStore
from tests.support.backup_files import state_of

store = BackupStore(Path(sys.argv[1]), 2, lambda path, step: print(step, flush=True), print)
for step in itertools.count(int(sys.argv[2])):
    store.write({"model": {"weight": torch.full((300, 1000), float(step))}, "optimizer": {}}, state_of(step))
"""


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path, warnings) -> BackupStore:
    return BackupStore(tmp_path, 2, lambda path, step: None, warnings.append)


def write(store: BackupStore, step: int, value: float | None = None) -> None:
    tensors = {"model": {"weight": torch.full((4, 3), float(step if value is None else value))}, "optimizer": {}}
    store.write(tensors, state_of(step, note="ä"))
    store.wait()


def fill_the_disk(monkeypatch) -> None:
    def refuse(path, tensors, metadata=None):
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("modules.trainer.BackupStore.save_tensors", refuse)


def test_a_backup_round_trips(store):
    tensors = {
        "model": {
            "a": torch.randn(3, 4, 2, 2).to(memory_format=torch.channels_last),
            "half": torch.randn(5).half(),
            "number": torch.tensor(3.0, dtype=torch.float64),
            "empty": torch.zeros(0, 2),
        },
        "optimizer": {"a/exp_avg": torch.randn(3, 4, 2, 2)},
    }
    data = state_of(7, list=[1, 2.5, None], nested={"pi": 3.141592653589793})
    store.write(tensors, data)
    store.wait()
    backup = store.newest()
    assert backup.data == data
    for file, group in tensors.items():
        assert backup.tensors[file].keys() == group.keys()
        for name, tensor in group.items():
            assert backup.tensors[file][name].dtype == tensor.dtype
            assert torch.equal(backup.tensors[file][name], tensor)


def test_a_backup_has_the_values_at_the_time_of_the_call(store, monkeypatch):
    def late(path, tensors, metadata=None):
        changed.wait(10)
        save_tensors(path, tensors, metadata)

    changed = threading.Event()
    monkeypatch.setattr("modules.trainer.BackupStore.save_tensors", late)
    weight, data = torch.zeros(1000), state_of(1, list=[1])
    store.write({"model": {"weight": weight}, "optimizer": {}}, data)
    weight.fill_(5.0)
    data["list"].append(2)
    changed.set()
    store.wait()
    backup = store.newest()
    assert backup.data["list"] == [1]
    assert not backup.tensors["model"]["weight"].any()


def test_the_newest_backups_are_kept(store):
    for step in (9, 10, 100):
        write(store, step)
    assert [path.name for path in store.paths()] == ["step-000000100", "step-000000010"]


def test_a_final_backup_of_the_step_that_has_one_is_told_once(tmp_path, warnings):
    told = []
    store = BackupStore(tmp_path, 2, lambda path, step: told.append(step), warnings.append)
    for step in (2, 4):
        write(store, step)
    tensors, data = {"model": {"weight": torch.full((4, 3), 4.0)}, "optimizer": {}}, state_of(4, note="ä")
    save = store.final_save(tensors, data, fails_run=False)
    (path,), error = save.write(save.destination)
    save.tell(path)
    assert error is None
    assert told == [2, 4]
    store.final_save(tensors, data, fails_run=False).tell(tmp_path / "elsewhere" / path.name)
    assert told == [2, 4, 4]


def test_without_backups_there_is_no_newest(store):
    assert store.newest() is None


def test_two_requests_at_one_step_write_one_backup(tmp_path):
    done = []
    store = BackupStore(tmp_path, 2, lambda path, step: done.append(step), pytest.fail)
    write(store, 3)
    written = (tmp_path / "step-000000003" / "model.safetensors").stat().st_mtime_ns
    write(store, 3)
    assert (tmp_path / "step-000000003" / "model.safetensors").stat().st_mtime_ns == written
    assert done == [3, 3]


def test_a_damaged_backup_is_written_again_at_its_step(store, tmp_path):
    write(store, 3)
    (tmp_path / "step-000000003" / "model.safetensors").write_bytes(b"")
    write(store, 3)
    assert check_manifest(tmp_path / "step-000000003") is None


def cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])


def flip(folder: Path) -> None:
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)


def say_step_minus_five(folder: Path) -> None:
    """Corrupts the state, but keeps its hash correct."""
    (folder / "state.json").write_text(json.dumps(state_of(-5)), encoding="utf-8")
    write_manifest(folder)


def lose_the_optimizer(folder: Path) -> None:
    (folder / "optimizer.safetensors").unlink()
    write_manifest(folder)


def write_no_tensors(folder: Path) -> None:
    """Corrupts a file, but keeps its hash correct."""
    (folder / "model.safetensors").write_bytes(b"x" * 20)
    write_manifest(folder)


def write_half_a_surrogate_pair(folder: Path) -> None:
    """Corrupts a name in a header, but keeps the file's hash correct."""
    header = rb'{"\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    write_manifest(folder)


DAMAGES = {
    "cut": cut,
    "flipped": flip,
    "without a manifest": lambda folder: (folder / "manifest.json").unlink(),
    "without a file": lambda folder: (folder / "model.safetensors").unlink(),
    "with another state": lambda folder: (folder / "state.json").write_text("{}", encoding="utf-8"),
    "of an impossible step": say_step_minus_five,
    "that was written without its optimizer": lose_the_optimizer,
    "that holds no tensors": write_no_tensors,
    "whose tensor has an impossible name": write_half_a_surrogate_pair,
    "with an empty manifest": lambda folder: (folder / "manifest.json").write_text('{"files": {}}'),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_newest_backup_is_skipped_with_a_warning(damage, store, warnings):
    write(store, 1)
    write(store, 2)
    damage(store.paths()[0])
    assert store.newest().data["step"] == 1
    assert len(warnings) == 1
    assert "step-000000002 is damaged" in warnings[0]
    assert "step-000000001 is used" in warnings[0]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_if_all_backups_are_damaged_the_error_describes_each(damage, store, warnings, tmp_path):
    write(store, 1)
    write(store, 2)
    for path in store.paths():
        damage(path)
    with pytest.raises(TrainingError, match=r"step-000000002 is damaged \(.*step-000000001 is damaged \(") as refusal:
        store.newest()
    assert str(tmp_path) in str(refusal.value)
    assert warnings == []


def test_loading_a_damaged_backup_raises_with_the_damage(store):
    write(store, 1)
    cut(store.paths()[0])
    with pytest.raises(DamagedBackup, match=r"model\.safetensors has \d+ bytes instead of"):
        store.load("step-000000001")


@pytest.mark.parametrize("name", ["notes.safetensors", "._model.safetensors"])
def test_extra_files_in_a_backup_are_ignored(name, store, warnings):
    write(store, 1)
    (store.paths()[0] / name).write_bytes(b"\0\5\26\7 not from us")
    assert store.newest().tensors.keys() == {"model", "optimizer"}
    assert warnings == []


def test_system_files_listed_in_the_manifest_are_ignored(store):
    write(store, 1)
    (store.paths()[0] / "._model.safetensors").write_bytes(b"\0\5\26\7 AppleDouble")
    write_manifest(store.paths()[0])
    assert store.newest().tensors.keys() == {"model", "optimizer"}


def test_an_unreadable_folder_is_an_error(store, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    write(store, 1)
    monkeypatch.setattr("modules.session.backups.os.listdir", refuse)
    with pytest.raises(TrainingError, match=r"can't be read \(Permission denied\)"):
        store.newest()


def test_a_full_disk_is_a_warning_and_the_previous_backup_stays(store, warnings, tmp_path, monkeypatch):
    write(store, 1)
    with monkeypatch.context() as full:
        fill_the_disk(full)
        write(store, 2)
    assert warnings == ["The backup at step 2 could not be written (No space left on device)."]
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]  # no temporary folder is left
    assert store.newest().data["step"] == 1
    write(store, 3)
    assert store.newest().data["step"] == 3


def test_the_third_failure_in_a_row_ends_the_run(store, warnings, monkeypatch):
    fill_the_disk(monkeypatch)
    write(store, 1)
    write(store, 2)
    with pytest.raises(TrainingError, match="3 backups in a row"):
        write(store, 3)
    assert len(warnings) == 3


def test_a_good_backup_resets_the_count_of_failures(store, monkeypatch):
    for step in (1, 4):
        with monkeypatch.context() as full:
            fill_the_disk(full)
            write(store, step)
            write(store, step + 1)
        write(store, step + 2)
    assert store.newest().data["step"] == 6


def test_values_that_json_can_not_hold_are_refused_at_once(store):
    with pytest.raises(ValueError):
        store.write({"model": {}}, {"step": 1, "loss": float("nan")})


def test_a_process_killed_while_writing_leaves_only_complete_backups(tmp_path):
    for attempt in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITES_WITHOUT_END, str(tmp_path), str(100 * attempt)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with process:
            process.stdout.readline()  # the first backup is complete and the next one is being written
            process.stdout.readline()
            time.sleep(0.007 * attempt)
            process.send_signal(signal.SIGKILL)
        visible = [path for path in tmp_path.iterdir() if ".tmp-" not in path.name]
        assert visible
        assert [check_manifest(path) for path in visible] == [None] * len(visible)
        backup = BackupStore(tmp_path, 2, print, pytest.fail).newest()
        assert torch.equal(backup.tensors["model"]["weight"], torch.full((300, 1000), float(backup.data["step"])))


def test_damaged_backups_of_later_steps_do_not_replace_the_new_one(store, tmp_path):
    for step in (200, 300):
        write(store, step)
        (tmp_path / f"step-{step:09d}/manifest.json").unlink()
    write(store, 50)
    assert store.newest().data["step"] == 50


@pytest.mark.parametrize("damage", [flip, lose_the_optimizer])
def test_a_damaged_backup_does_not_count_as_kept(damage, store, tmp_path, warnings):
    write(store, 5)
    write(store, 10)
    damage(tmp_path / "step-000000010")
    assert store.newest().data["step"] == 5
    write(store, 15)
    flip(tmp_path / "step-000000015")
    assert store.newest().data["step"] == 5


def test_a_skipped_damaged_backup_is_overwritten_at_its_step(store, tmp_path):
    write(store, 5)
    write(store, 10, value=1.0)
    cut(tmp_path / "step-000000010")
    assert store.newest().data["step"] == 5
    write(store, 10, value=2.0)
    assert damage(tmp_path / "step-000000010") is None
    assert store.newest().tensors["model"]["weight"].unique().item() == 2.0
    write(store, 15)
    assert [path.name for path in store.paths()] == ["step-000000015", "step-000000010"]


def test_the_estimate_of_system_memory_counts_what_a_backup_copies(make_config, start):
    settings = ("method=full", "ema.enabled=true", "backup.every=1", "backup.unit=steps", "optimizer.name=adamw")
    config = make_config(*settings)
    trainer = start(config)
    trainer.train()
    tensors, _ = trainer._backup_content()
    trainer.end()
    copied = sum(tensor.nbytes for file in tensors.values() for tensor in file.values())
    count = sum(parameter.numel() for parameter in trainer.loop.trainable.values())
    model = replace(load_architectures()["sd15"], denoiser=count)
    assert PassingMemory(RunMemory(config, model)).backed_up == pytest.approx(copied, rel=0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_on_windows_a_loaded_backup_can_be_deleted_while_its_tensors_are_in_use(store, monkeypatch):
    write(store, 1, value=2.0)
    monkeypatch.setattr("modules.trainer.BackupStore._LOCKS_MAPPED_FILES", True)
    backup = store.newest()
    assert str(backup.path) not in Path("/proc/self/maps").read_text()
    assert backup.tensors["model"]["weight"].unique().item() == 2.0
