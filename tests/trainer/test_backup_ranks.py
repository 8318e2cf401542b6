"""Backups of which each rank writes a part: the ranks are threads here, with stores of their own."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from modules.distributed.shards import DividedRows, assign
from modules.session.backups import damage, part_name
from modules.session.manifest import check_manifest, write_manifest
from modules.trainer import BackupStore as module
from modules.trainer.BackupRanks import BackupRanks
from modules.trainer.BackupStore import BackupStore
from modules.trainer.TrainingError import DamagedBackup
from modules.weights.safe import save_tensors
from tests.support.backup_files import state_of
from tests.support.PostingRuntime import PostingRuntime, stores_of_ranks
from tests.support.waiting import PATIENCE_SECONDS, wait_until

ROOT = Path(__file__).resolve().parents[2]
WRITES_WITHOUT_END = """
import itertools, sys
from pathlib import Path
from tests.support.PostingRuntime import stores_of_ranks
from tests.trainer.test_backup_ranks import write

stores = stores_of_ranks(Path(sys.argv[1]), 3, done=lambda path, step: print(step, flush=True))
for step in itertools.count(int(sys.argv[2])):
    write(stores, step, rows=300)
"""


def tensors_of(rank: int, count: int, step: int, rows: int = 7) -> dict[str, dict[str, torch.Tensor]]:
    """What rank `rank` has of one weight, whose elements are the numbers from `step` on, and of its moments."""
    weight = (step + torch.arange(rows * 1000.0)).view(rows, 1000)
    size = -(-rows // count)
    own = weight[rank * size : (rank + 1) * size]
    moments = {"weight/exp_avg": 2 * own, **({"weight/step": torch.tensor(float(step))} if rank == 0 else {})}
    return {part_name("model", rank, count): {"weight": own}, part_name("optimizer", rank, count): moments}


def write(stores: list[BackupStore], step: int, rows: int = 7) -> None:
    """Writes a backup from all ranks. Rank 0 may begin before the others."""
    for rank, store in enumerate(stores):
        store.write(tensors_of(rank, len(stores), step, rows), state_of(step))


def wait(stores: list[BackupStore]) -> None:
    for store in stores:
        store.wait()


def value(saved: torch.Tensor | DividedRows) -> torch.Tensor:
    whole = torch.full(saved.shape, -1.0, dtype=saved.dtype)
    assign(whole, saved)
    return whole


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_the_parts_of_all_ranks_are_one_backup(count, tmp_path):
    stores = stores_of_ranks(tmp_path, count)
    write(stores, 1)
    write(stores, 2)
    wait(stores)
    backup = BackupStore(tmp_path, 2, print, pytest.fail).newest()
    full = {name: group for part in tensors_of(0, 1, 2).values() for name, group in part.items()}
    found = {**backup.tensors["model"], **backup.tensors["optimizer"]}
    assert found.keys() == full.keys()
    for name, expected in full.items():
        assert torch.equal(value(found[name]), expected)
    names = {path.name for path in backup.path.glob("model*")}
    assert names == {f"{part_name('model', rank, count)}.safetensors" for rank in range(count)}


def test_rows_are_read_from_the_parts_that_have_them():
    whole = torch.arange(14.0).view(7, 2)
    rows = DividedRows([whole[:3], whole[3:6], whole[6:], whole[7:]])
    assert (rows.shape, rows.dtype) == (whole.shape, whole.dtype)
    for start in range(8):
        for stop in range(start, 9):
            found = list(rows.between(start, stop))
            assert torch.equal(torch.cat([whole[:0], *found]), whole[start:stop])


@pytest.mark.parametrize("failing", [0, 2])
def test_a_rank_that_cannot_write_leaves_the_former_backup(failing, tmp_path, monkeypatch):
    warnings: list[str] = []
    stores = stores_of_ranks(tmp_path, 3, warn=warnings.append)
    write(stores, 1)
    wait(stores)

    def full_disk(path, tensors, metadata=None):
        if part_name("model", failing, 3) in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        save_tensors(path, tensors, metadata)

    with monkeypatch.context() as full:
        full.setattr(module, "save_tensors", full_disk)
        write(stores, 2)
        wait(stores)
    assert warnings == ["The backup at step 2 could not be written (No space left on device)."]
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]
    write(stores, 3)
    wait(stores)
    assert stores[0].newest().data["step"] == 3


def test_a_rank_that_does_not_see_the_folder_does_not_create_it(tmp_path, monkeypatch):
    warnings: list[str] = []
    stores = stores_of_ranks(tmp_path, 2, warn=warnings.append)
    monkeypatch.setattr("modules.trainer.BackupRanks._is_own_folder", lambda parent, name: False)
    write(stores, 2)
    wait(stores)
    assert "its folder is not one that all machines share" in warnings[0]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "where",
    [
        [0, ["..", "step-000000001.tmp-1-00000000"]],
        [0, ["step-000000001"]],
        [0, ["other/step-000000001.tmp-1-00000000"]],
        [0, ["a", "b", "step-000000001.tmp-1-00000000"]],
        [0, ["link.tmp-1-00000000"]],
        [0, ["missing.tmp-1-00000000"]],
        [1, ["step-000000001.tmp-1-00000000"]],
        [-1, ["step-000000001.tmp-1-00000000"]],
        [0, ["/step-000000001.tmp-1-00000000"]],
    ],
)
def test_a_request_can_name_no_folder_but_one_of_a_backup_that_is_being_written(where, tmp_path):
    place, other = tmp_path / "backup", tmp_path / "other"
    for folder in (place, other):
        (folder / "step-000000001.tmp-1-00000000").mkdir(parents=True)
    (place / "link.tmp-1-00000000").symlink_to(other)
    board: dict[tuple[str, int], str] = {}
    first, second = (PostingRuntime(rank, 2, board) for rank in range(2))
    ranks, written = BackupRanks(second, [place]), []
    released = threading.Event()

    def write_part(folder: Path) -> dict:
        written.append(folder)
        return {}

    serving = threading.Thread(target=ranks.serve, args=(write_part, released), daemon=True)
    serving.start()
    for number, (request, is_written) in enumerate([(where, False), ([0, ["step-000000001.tmp-1-00000000"]], True)], 1):
        first.post("backup", [number, request])
        wait_until(lambda number=number: (first.posted("backup", 1) or [0])[0] == number)
        assert (first.posted("backup", 1)[2] is None) == is_written
    released.set()
    serving.join(PATIENCE_SECONDS)
    assert written == [place / "step-000000001.tmp-1-00000000"]


def test_the_final_backup_goes_to_another_folder_if_the_first_can_not_take_it(tmp_path, monkeypatch):
    stores = stores_of_ranks(tmp_path / "full", 2, others=[tmp_path])
    saves = [store.final_save(tensors_of(i, 2, 5), state_of(5), fails_run=True) for i, store in enumerate(stores)]

    def full_disk(path, tensors, metadata=None):
        if tmp_path / "full" in path.parents:
            raise OSError(errno.ENOSPC, "No space left on device")
        save_tensors(path, tensors, metadata)

    monkeypatch.setattr(module, "save_tensors", full_disk)
    for folder in ("full", "other"):
        (tmp_path / folder).mkdir()
    assert saves[0].write(tmp_path / "full")[1].errno == errno.ENOSPC
    paths, error = saves[0].write(tmp_path / "other")
    for store in stores:
        store.release()
    assert (paths, error) == ([tmp_path / "other" / "step-000000005"], None)
    assert damage(paths[0]) is None
    assert not list((tmp_path / "full").iterdir())
    expected = sum(tensor.nbytes for group in tensors_of(0, 1, 5).values() for tensor in group.values())
    assert expected <= saves[0].num_bytes <= 1.2 * expected  # the last rank has fewer rows


def test_a_backup_that_lacks_a_part_is_damaged(tmp_path):
    stores = stores_of_ranks(tmp_path, 2)
    write(stores, 1)
    wait(stores)
    path = tmp_path / "step-000000001"
    (path / "optimizer-00002-of-00002.safetensors").unlink()
    write_manifest(path)
    with pytest.raises(DamagedBackup, match=r"does not list optimizer-00002-of-00002\.safetensors"):
        stores[0].load("step-000000001")


def test_a_process_killed_while_ranks_write_leaves_only_complete_backups(tmp_path):
    for attempt in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITES_WITHOUT_END, str(tmp_path), str(100 * attempt)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with process:
            process.stdout.readline()  # the first backup is complete and the next one is being written
            time.sleep(0.007 * attempt)
            process.send_signal(signal.SIGKILL)
        visible = [path for path in tmp_path.iterdir() if ".tmp-" not in path.name]
        assert visible
        assert [check_manifest(path) for path in visible] == [None] * len(visible)
        backup = BackupStore(tmp_path, 2, print, pytest.fail).newest()
        whole = tensors_of(0, 1, backup.data["step"], rows=300)["model"]["weight"]
        assert torch.equal(value(backup.tensors["model"]["weight"]), whole)


def test_a_request_names_the_innermost_place_around_its_folder(tmp_path):
    """The run folder may be below the temporary folder, and a fallback folder below the folder of backups."""
    backups, inner = tmp_path / "run" / "backup", tmp_path / "run" / "backup" / "fallback"
    ranks = BackupRanks(None, [backups, inner, tmp_path])
    for number, folder, names in (
        (0, backups / "step-1.tmp-x", ["step-1.tmp-x"]),
        (1, inner / "chorus-run" / "step-1.tmp-x", ["chorus-run", "step-1.tmp-x"]),
        (2, tmp_path / "chorus-run" / "step-1.tmp-x", ["chorus-run", "step-1.tmp-x"]),
    ):
        assert ranks._where(folder) == [number, names]
