"""Renaming and deleting is retried while Windows refuses it because another process has the file open."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from modules.config import atomic_file, busy_files
from modules.config.busy_files import retry_busy
from modules.config.files import load_config, save_config
from modules.config.TrainConfig import TrainConfig
from modules.data import TensorCache
from modules.session import atomic
from modules.session.backups import go_back_to, list_backups
from modules.session.RunFolder import RunFolder
from tests.support.backup_files import write_backup


def busy(times: int, action: Callable) -> Callable:
    """An action that is refused a number of times before it succeeds."""
    left = [times]

    def act(*arguments, **options):
        if left[0]:
            left[0] -= 1
            raise PermissionError(13, "The process cannot access the file because it is being used by another process")
        return action(*arguments, **options)

    return act


@pytest.fixture
def windows(monkeypatch) -> None:
    monkeypatch.setattr(busy_files, "_FILES_GET_BUSY", True)


def test_on_windows_what_is_busy_is_tried_until_it_is_not(windows):
    assert retry_busy(busy(2, lambda: "done")) == "done"


def test_patience_has_an_end(windows):
    with pytest.raises(PermissionError):
        retry_busy(busy(10**9, lambda: "done"), seconds=0)


def test_a_refusal_of_posix_stays_one(monkeypatch):
    monkeypatch.setattr(busy_files, "_FILES_GET_BUSY", False)
    with pytest.raises(PermissionError):
        retry_busy(busy(1, lambda: "done"))


def save_settings(folder: Path) -> None:
    save_config(TrainConfig(epochs=3), folder / "run.yaml")
    assert load_config(folder / "run.yaml").epochs == 3


def write_file(folder: Path) -> None:
    atomic.write_text(folder / "file", "text")
    assert (folder / "file").read_text(encoding="utf-8") == "text"


def write_folder(folder: Path) -> None:
    with atomic.new_folder(folder / "new") as temporary:
        (temporary / "file").touch()
    assert (folder / "new" / "file").exists()


def remove_folder(folder: Path) -> None:
    (folder / "old").mkdir()
    atomic.remove_folder(folder / "old")
    assert not (folder / "old").exists()


def forget_the_end(folder: Path) -> None:
    run = RunFolder(folder)
    run.exit_path.write_text("{}", encoding="utf-8")
    assert run.read_exit() == {}
    run.clear_exit()
    assert run.read_exit() is None


def go_back(folder: Path) -> None:
    run = RunFolder(folder)
    for step in (1, 2):
        write_backup(run.backup_dir, step)
    go_back_to(run, 1)
    assert [(info.step, info.is_aside) for info in list_backups(run)] == [(2, True), (1, False)]


def cache(folder: Path) -> None:
    TensorCache._write(folder / "entry", b"data")
    assert (folder / "entry").read_bytes() == b"data"


@pytest.mark.parametrize(
    ("work", "module", "name"),
    [
        (save_settings, os, "replace"),
        (write_file, os, "replace"),
        (write_folder, os, "replace"),
        (remove_folder, os, "replace"),
        (forget_the_end, Path, "unlink"),
        (forget_the_end, Path, "read_bytes"),
        (go_back, os, "replace"),
        (cache, os, "replace"),
    ],
)
def test_a_file_that_is_open_elsewhere_for_a_moment_stops_nothing(work, module, name, windows, tmp_path, monkeypatch):
    monkeypatch.setattr(module, name, busy(2, getattr(module, name)))
    work(tmp_path)


def test_settings_that_are_being_replaced_are_read_a_moment_later(windows, tmp_path, monkeypatch):
    save_config(TrainConfig(epochs=3), tmp_path / "run.yaml")
    monkeypatch.setattr(Path, "open", busy(2, Path.open))
    assert load_config(tmp_path / "run.yaml").epochs == 3


def test_a_new_file_that_a_scanner_reads_is_synced_a_moment_later(windows, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "open", busy(2, os.open))
    atomic_file.sync_file(tmp_path / "file")
