"""Saving the final model and backup to full or broken disks, which are simulated."""

from __future__ import annotations

import errno
import itertools
import os
from collections import namedtuple
from pathlib import Path

import pytest

from modules.config.OutputConfig import OutputConfig
from modules.session.backups import damage, newest_usable
from modules.session.RunFolder import RunFolder
from modules.trainer import FallbackSaver as module
from modules.trainer.FallbackSaver import FallbackSaver
from modules.trainer.FinalSave import FinalSave
from modules.trainer.TrainingError import TrainingError
from modules.weights.errors import WeightsError
from tests.support.backup_files import write_backup
from tests.support.Recorder import Recorder

MB = 1_000_000
ROOM = 100 * MB
Usage = namedtuple("Usage", "total used free")


class Disks:
    """Simulated disks: folder -> the free bytes of its disk, or the error that writing raises."""

    def __init__(self):
        self.states: dict[Path, int | OSError] = {}
        self.attempts: list[Path] = []

    def of(self, path: Path) -> int | OSError:
        found = [folder for folder in self.states if folder == path or folder in path.parents]
        return self.states[max(found, key=lambda folder: len(folder.parts))]

    def usage(self, path) -> Usage:
        state = self.of(Path(path))
        return Usage(ROOM, 0, ROOM if isinstance(state, OSError) else state)

    def refuse(self, path: Path, num_bytes: int) -> OSError | None:
        """The error of writing `num_bytes` to `path`; None if it succeeds."""
        self.attempts.append(path)
        state = self.of(path)
        if isinstance(state, OSError):
            return state
        return None if num_bytes <= state else OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.config_path.touch()
    folder.clear_exit()
    return folder


@pytest.fixture
def disks(folder, tmp_path, monkeypatch) -> Disks:
    """The run folder's disk is full; the folder `spare` and the temporary folder have space."""
    for name in ("spare", "tmp"):
        (tmp_path / name).mkdir()
    disks = Disks()
    disks.states = {tmp_path: ROOM, folder.path: MB}
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr("shutil.disk_usage", disks.usage)
    return disks


@pytest.fixture
def clock(monkeypatch):
    """A clock that advances only while the saver sleeps; `events`: seconds -> what happens then."""

    class Clock:
        now = 1000.0
        events: dict[float, object] = {}

        def sleep(self, seconds: float) -> None:
            self.now += seconds
            for time in [time for time in self.events if time <= self.now - 1000.0]:
                self.events.pop(time)()

    clock = Clock()
    clock.events = {}
    monkeypatch.setattr(module.time, "sleep", clock.sleep)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def told() -> Recorder:
    return Recorder()


@pytest.fixture
def make_saver(folder, told, tmp_path):
    def make(fallback_dir: str = str(tmp_path / "spare"), wait_minutes: float = 10.0) -> FallbackSaver:
        return FallbackSaver(folder, OutputConfig(fallback_dir=fallback_dir, wait_minutes=wait_minutes), told)

    return make


@pytest.fixture
def model(folder, disks, told):
    """Creates the save of a model of 5 MB in two files."""

    def write(destination: Path):
        written = []
        for name, size in (("a.safetensors", 3 * MB), ("b.safetensors", 2 * MB)):
            if error := disks.refuse(destination, 3 * MB * len(written) + size):
                break
            with open(destination / name, "wb") as file:
                file.truncate(size)
            written.append(destination / name)
        return written, error

    return lambda: FinalSave("model", folder.models_dir, 5 * MB, write, lambda path: told.on_saved(path, 4))


@pytest.fixture
def backup(folder, disks, told):
    def write(destination: Path):
        path = destination / "step-000000004"
        if path.is_symlink():
            path.unlink()
        if error := disks.refuse(destination, 5 * MB):
            return [], error
        return [write_backup(destination, 4)], None

    def tell(path: Path) -> None:
        told.on_backup(path, 4)

    return lambda: FinalSave("backup of step 4", folder.backup_dir, 5 * MB, write, tell, is_resumed_from=True)


def save(saver: FallbackSaver, *saves: FinalSave, is_over=lambda: False, beat=lambda: None) -> None:
    for one in saves:
        saver.save(one)
    saver.wait(is_over, beat)
    saver.finish()


def record(folder: RunFolder) -> dict:
    folder.write_exit("finished", rank=0)
    return folder.read_exit()


# --- fallback folders -------------------------------------------------------------------------------------------------


def test_with_enough_space_there_is_no_warning_and_no_fallback_copy(folder, disks, make_saver, model, told, tmp_path):
    disks.states[folder.path] = ROOM
    save(make_saver(), model())
    assert sorted(os.listdir(folder.models_dir)) == ["a.safetensors", "b.safetensors"]
    assert (told.warnings, told.statuses) == ([], [])
    assert os.listdir(tmp_path / "spare") == os.listdir(tmp_path / "tmp") == []
    assert "elsewhere" not in record(folder)


@pytest.mark.parametrize(("fallback_dir", "parent"), [(None, "spare"), ("", "tmp")])
def test_on_a_full_disk_the_model_goes_to_a_fallback_folder_with_a_warning(
    fallback_dir, parent, folder, disks, clock, make_saver, model, told, tmp_path
):
    save(make_saver() if fallback_dir is None else make_saver(fallback_dir), model())
    (elsewhere,) = (tmp_path / parent).iterdir()
    assert sorted(os.listdir(elsewhere)) == ["a.safetensors", "b.safetensors"]
    assert os.listdir(folder.models_dir) == []
    assert told.saved == [elsewhere / "a.safetensors", elsewhere / "b.safetensors"]
    first, last = told.warnings
    assert f"could not be written to {folder.models_dir} (No space left on device; it needs about 5 MB" in first
    assert "with 1 MB free" in first
    assert f"saved to {elsewhere} instead" in first
    assert str(elsewhere) in last
    assert ("before the system empties its temporary folder" in last) == (parent == "tmp")
    assert record(folder)["elsewhere"] == [str(path) for path in told.saved]
    assert folder.read_exit()["text"] == last


@pytest.mark.parametrize("spare", [MB, OSError(errno.EROFS, "Read-only file system")])
def test_if_the_fallback_folder_is_unusable_the_temporary_folder_is_used(
    spare, disks, clock, make_saver, model, told, tmp_path
):
    disks.states[tmp_path / "spare"] = spare
    save(make_saver(), model())
    assert {path.parent.parent for path in told.saved} == {tmp_path / "tmp"}
    assert os.listdir(tmp_path / "spare") == []


def test_a_missing_fallback_folder_is_created(disks, clock, make_saver, model, told, tmp_path):
    save(make_saver(str(tmp_path / "spare" / "new" / "one")), model())
    assert {path.parent.parent for path in told.saved} == {tmp_path / "spare" / "new" / "one"}


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX permissions")
def test_only_the_owner_can_read_the_copy_in_the_temporary_folder(disks, clock, make_saver, model, told):
    save(make_saver(""), model())
    assert told.saved[0].parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        OSError(errno.EROFS, "Read-only file system"),
        OSError(errno.EIO, "Input/output error"),
    ],
)
def test_other_disk_errors_are_named_and_handled_like_a_full_disk(
    error, folder, disks, clock, make_saver, model, told, tmp_path
):
    disks.states[folder.path] = error
    save(make_saver(), model())
    assert len(told.saved) == 2
    assert f"{folder.models_dir} ({error.strerror}" in told.warnings[0]


def test_a_missing_run_folder_is_not_recreated(folder, disks, clock, make_saver, model, told, tmp_path):
    folder.path.rename(tmp_path / "unmounted")
    save(make_saver(), model())
    assert not folder.path.exists()
    assert "No such file or directory" in told.warnings[0]
    assert len(told.saved) == 2


# --- waiting for space ------------------------------------------------------------------------------------------------


def test_once_there_is_space_the_model_moves_to_its_destination(
    folder, disks, clock, make_saver, model, told, tmp_path
):
    clock.events[120.0] = lambda: disks.states.update({folder.path: ROOM})
    save(make_saver(), model())
    assert clock.now - 1000.0 < 140.0
    assert sorted(os.listdir(folder.models_dir)) == ["a.safetensors", "b.safetensors"]
    assert told.saved[-1] == folder.models_dir / "b.safetensors"
    assert os.listdir(tmp_path / "spare") == []
    assert len(told.warnings) == 1  # none at the end
    assert record(folder).keys() == {"status", "time", "rank"}


def test_while_waiting_it_reports_its_status_and_beats(folder, disks, clock, make_saver, model, told):
    beats = []
    save(make_saver(), model(), beat=lambda: beats.append(clock.now))
    assert clock.now - 1000.0 == pytest.approx(600.0, abs=1.0)
    assert max(after - before for before, after in itertools.pairwise(beats)) == 1.0
    assert len(told.statuses) == 10
    assert told.statuses[0].startswith(f"Waiting up to 10 min for 4 MB in {folder.models_dir};")


def test_no_attempt_is_made_while_there_is_too_little_space(folder, disks, clock, make_saver, model):
    save(make_saver(), model())
    assert disks.attempts.count(folder.models_dir) == 1


def test_a_disk_whose_free_space_says_nothing_is_retried_periodically(folder, disks, clock, make_saver, model):
    disks.states[folder.path] = OSError(errno.EDQUOT, "Disk quota exceeded")
    save(make_saver(), model())
    assert disks.attempts.count(folder.models_dir) == 1 + 600 / module.RETRY_SECONDS


def test_a_stop_ends_the_wait_at_once(disks, clock, make_saver, model):
    save(make_saver(), model(), is_over=lambda: clock.now > 1003.0)
    assert clock.now == 1004.0


def test_zero_wait_minutes_mean_no_wait(disks, clock, make_saver, model, told):
    save(make_saver(wait_minutes=0.0), model())
    assert clock.now == 1000.0
    assert len(told.saved) == 2


def test_a_partial_save_is_removed_before_the_next_attempt(folder, disks, clock, make_saver, model, told):
    disks.states[folder.path] = 4 * MB
    saver, one = make_saver(), model()
    clock.events[5.0] = lambda: disks.states.update({folder.path: ROOM})
    saver.save(one)
    assert one.part == [folder.models_dir / "a.safetensors"]
    save(saver)
    assert sorted(os.listdir(folder.models_dir)) == ["a.safetensors", "b.safetensors"]
    assert not saver.has_misplaced


# --- no space anywhere ------------------------------------------------------------------------------------------------


@pytest.fixture
def no_room(disks, tmp_path) -> None:
    disks.states[tmp_path] = 2 * MB


def test_a_model_that_fits_nowhere_is_an_error_that_names_every_folder(
    folder, disks, no_room, clock, make_saver, model, told, tmp_path
):
    with pytest.raises(TrainingError) as error:
        save(make_saver(), model())
    assert clock.now - 1000.0 == pytest.approx(600.0, abs=1.0)
    for parent in (tmp_path / "spare", tmp_path / "tmp"):
        assert f"{parent}: only 2 MB free" in str(error.value)
        assert os.listdir(parent) == []
    assert str(error.value).endswith("free some space, then start again; there is no backup to resume from.")
    assert "nor anywhere else" in told.warnings[0]


def test_the_error_names_the_newest_good_backup(folder, disks, no_room, clock, make_saver, model):
    write_backup(folder.backup_dir, 2)
    write_backup(folder.backup_dir, 3, without=("model.safetensors",))
    with pytest.raises(TrainingError, match=r"then resume from the backup of step 2\.$"):
        save(make_saver(), model())


def test_a_fallback_folder_that_gets_space_later_is_used(disks, no_room, clock, make_saver, model, told, tmp_path):
    clock.events[60.0] = lambda: disks.states.update({tmp_path / "tmp": ROOM})
    save(make_saver(), model())
    assert {path.parent.parent for path in told.saved} == {tmp_path / "tmp"}


def test_an_optional_save_that_fits_nowhere_is_only_a_warning(folder, disks, no_room, clock, make_saver, model, told):
    one = model()
    one.fails_run = False
    save(make_saver(), one)
    assert "nor anywhere else" in told.warnings[-1]


def test_an_error_that_disk_space_would_not_fix_is_raised_at_once(disks, make_saver, folder):
    def write(destination):
        return [], WeightsError("The layer 'x' has no name; save in diffusers' format instead.")

    with pytest.raises(TrainingError, match=r"has no name.*instead: start again; there is no backup"):
        make_saver().save(FinalSave("model", folder.models_dir, 1, write, print))


# --- backups ----------------------------------------------------------------------------------------------------------


def test_a_resume_finds_a_backup_in_a_fallback_folder(folder, disks, clock, make_saver, backup, told):
    write_backup(folder.backup_dir, 2)
    save(make_saver(), backup())
    assert newest_usable(folder).step == 4
    assert "--resume continues from it" in told.warnings[-1]
    assert told.backups[0][0].parent.parent.name == "spare"


def test_a_fallback_backup_that_is_gone_is_reported_as_gone(folder, disks, clock, make_saver, backup, told):
    save(make_saver(), backup())
    ((path, _),) = told.backups
    path.rename(path.with_name("moved"))
    assert newest_usable(folder) is None
    assert damage(folder.backup_dir / "step-000000004") == f"it was saved to {path}, which is gone"


def test_a_backup_that_moves_to_its_destination_replaces_its_link(folder, disks, clock, make_saver, backup, tmp_path):
    clock.events[30.0] = lambda: disks.states.update({folder.path: ROOM})
    save(make_saver(), backup())
    assert not (folder.backup_dir / "step-000000004").is_symlink()
    assert newest_usable(folder).step == 4
    assert os.listdir(tmp_path / "spare") == []


def test_model_and_backup_share_a_fallback_folder_and_are_both_reported(
    folder, disks, clock, make_saver, model, backup, told
):
    save(make_saver(), backup(), model())
    assert len({path.parent for path in [*told.saved, told.backups[0][0]]}) == 1
    assert len(record(folder)["elsewhere"]) == 3
    assert "The backup of step 4 is in" in folder.read_exit()["text"]
    assert "The model is in" in folder.read_exit()["text"]


def test_if_links_are_impossible_the_warning_says_what_to_move(
    folder, disks, clock, make_saver, backup, told, monkeypatch
):
    def refuse(*args, **kwargs):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", refuse)
    save(make_saver(), backup())
    assert f"move it to {folder.backup_dir}, then --resume continues from it." in told.warnings[-1]
