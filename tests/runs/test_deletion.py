"""Deleting runs: what goes, what stays, and what is refused."""

import os

import pytest

from modules.config.errors import UserError
from modules.runs.deletion import Sizes, delete_run, sizes_of
from modules.session.RunFolder import RunFolder
from modules.session.RunLock import RunLock
from tests.support.backup_files import write_backup
from tests.support.many_runs import make_run


@pytest.fixture
def run(tmp_path) -> RunFolder:
    """A run with a model, a backup, a sample, and a link to a folder elsewhere."""
    folder = make_run(tmp_path / "run", values={})
    for part in (folder.models_dir, folder.samples_dir):
        part.mkdir()
        (part / "file").write_bytes(b"x" * 1000)
    write_backup(folder.backup_dir, 3)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").write_bytes(b"x" * 5000)
    if os.name != "nt":
        folder.log_dir.symlink_to(tmp_path / "elsewhere")
    return folder


def files_in(folder) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_models_stay_with_their_settings_unless_they_are_deleted_too(run):
    sizes = sizes_of(run.path)
    before = sum(path.lstat().st_size for path in run.path.rglob("*") if path.is_file() and not path.is_symlink())
    kept = run.config_path.stat().st_size
    assert sizes == Sizes(before - 1000 - kept - 0, 1000, 1)
    left = delete_run(run.path, with_models=False)
    assert files_in(run.path) == {"models/file", "config.yaml"}
    assert {path.name for path in left} == {"models", "config.yaml"}
    assert (run.path.parent / "elsewhere" / "kept").exists()


def test_a_run_is_deleted_as_a_whole_but_for_what_it_has_not_written(run):
    (run.path / "my notes.txt").touch()
    assert delete_run(run.path, with_models=True) == [run.path / "my notes.txt"]
    (run.path / "my notes.txt").unlink()
    make_run(run.path.parent / "other")
    assert delete_run(run.path.parent / "other", with_models=False) == []
    assert not (run.path.parent / "other").exists()


def test_a_running_run_is_never_deleted(run):
    before = files_in(run.path)
    with RunLock(run.lock_path), pytest.raises(UserError, match="active: stop it"):
        delete_run(run.path, with_models=True)
    assert files_in(run.path) - {"run.lock"} == before
