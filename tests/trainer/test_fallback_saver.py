"""What a run leaves at its end is kept on a disk that takes no more; the disks here are made up."""

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
    """Folder -> the free bytes of its disk, or the error that writing there gives."""

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
        """What an attempt to write so much to `path` gives."""
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
    """The run folder's disk is full; there is room beside it and in the temporary folder."""
    for name in ("spare", "tmp"):
        (tmp_path / name).mkdir()
    disks = Disks()
    disks.states = {tmp_path: ROOM, folder.path: MB}
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr("shutil.disk_usage", disks.usage)
    return disks


@pytest.fixture
def clock(monkeypatch):
    """A time that passes only while the saver sleeps; `events`: time -> what then happens."""

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
    """A function that gives a model of 5 MB, of two files."""

    def write(home: Path):
        written = []
        for name, size in (("a.safetensors", 3 * MB), ("b.safetensors", 2 * MB)):
            if error := disks.refuse(home, 3 * MB * len(written) + size):
                break
            with open(home / name, "wb") as file:
                file.truncate(size)
            written.append(home / name)
        return written, error

    return lambda: FinalSave("model", folder.models_dir, 5 * MB, write, lambda path: told.on_saved(path, 4))


@pytest.fixture
def backup(folder, disks, told):
    def write(home: Path):
        path = home / "step-000000004"
        if path.is_symlink():
            path.unlink()
        if error := disks.refuse(home, 5 * MB):
            return [], error
        return [write_backup(home, 4)], None

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


# --- where it goes ----------------------------------------------------------------------------------------------------


def test_where_there_is_room_nothing_is_said_or_left_elsewhere(folder, disks, make_saver, model, told, tmp_path):
    disks.states[folder.path] = ROOM
    save(make_saver(), model())
    assert sorted(os.listdir(folder.models_dir)) == ["a.safetensors", "b.safetensors"]
    assert (told.warnings, told.statuses) == ([], [])
    assert os.listdir(tmp_path / "spare") == os.listdir(tmp_path / "tmp") == []
    assert "elsewhere" not in record(folder)


@pytest.mark.parametrize(("fallback_dir", "place"), [(None, "spare"), ("", "tmp")])
def test_on_a_full_disk_a_model_is_saved_elsewhere_and_it_is_said_where_and_what_lacks(
    fallback_dir, place, folder, disks, clock, make_saver, model, told, tmp_path
):
    save(make_saver() if fallback_dir is None else make_saver(fallback_dir), model())
    (elsewhere,) = (tmp_path / place).iterdir()
    assert sorted(os.listdir(elsewhere)) == ["a.safetensors", "b.safetensors"]
    assert os.listdir(folder.models_dir) == []
    assert told.saved == [elsewhere / "a.safetensors", elsewhere / "b.safetensors"]
    first, last = told.warnings
    assert f"could not be written to {folder.models_dir} (No space left on device; it needs about 5 MB" in first
    assert "with 1 MB free" in first
    assert f"saved to {elsewhere} instead" in first
    assert str(elsewhere) in last
    assert ("before the system empties its temporary folder" in last) == (place == "tmp")
    assert record(folder)["elsewhere"] == [str(path) for path in told.saved]
    assert folder.read_exit()["text"] == last


@pytest.mark.parametrize("spare", [MB, OSError(errno.EROFS, "Read-only file system")])
def test_a_fallback_folder_that_takes_nothing_either_leaves_the_temporary_folder(
    spare, disks, clock, make_saver, model, told, tmp_path
):
    disks.states[tmp_path / "spare"] = spare
    save(make_saver(), model())
    assert {path.parent.parent for path in told.saved} == {tmp_path / "tmp"}
    assert os.listdir(tmp_path / "spare") == []


def test_a_fallback_folder_is_made(disks, clock, make_saver, model, told, tmp_path):
    save(make_saver(str(tmp_path / "spare" / "new" / "one")), model())
    assert {path.parent.parent for path in told.saved} == {tmp_path / "spare" / "new" / "one"}


@pytest.mark.skipif(os.name == "nt", reason="permissions of this kind are POSIX's")
def test_what_lies_in_the_temporary_folder_is_for_its_owner_alone(disks, clock, make_saver, model, told):
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
def test_any_other_trouble_of_the_disk_is_called_by_its_name_and_treated_alike(
    error, folder, disks, clock, make_saver, model, told, tmp_path
):
    disks.states[folder.path] = error
    save(make_saver(), model())
    assert len(told.saved) == 2
    assert f"{folder.models_dir} ({error.strerror}" in told.warnings[0]


def test_a_run_folder_that_has_gone_is_not_made_anew(folder, disks, clock, make_saver, model, told, tmp_path):
    folder.path.rename(tmp_path / "unmounted")
    save(make_saver(), model())
    assert not folder.path.exists()
    assert "No such file or directory" in told.warnings[0]
    assert len(told.saved) == 2


# --- the waiting ------------------------------------------------------------------------------------------------------


def test_once_there_is_room_it_comes_to_where_it_belongs(folder, disks, clock, make_saver, model, told, tmp_path):
    clock.events[120.0] = lambda: disks.states.update({folder.path: ROOM})
    save(make_saver(), model())
    assert clock.now - 1000.0 < 140.0
    assert sorted(os.listdir(folder.models_dir)) == ["a.safetensors", "b.safetensors"]
    assert told.saved[-1] == folder.models_dir / "b.safetensors"
    assert os.listdir(tmp_path / "spare") == []
    assert len(told.warnings) == 1  # nothing to remember of it
    assert record(folder).keys() == {"status", "time", "rank"}


def test_the_waiting_is_aloud_and_shows_life(folder, disks, clock, make_saver, model, told):
    beats = []
    save(make_saver(), model(), beat=lambda: beats.append(clock.now))
    assert clock.now - 1000.0 == pytest.approx(600.0, abs=1.0)
    assert max(after - before for before, after in itertools.pairwise(beats)) == 1.0
    assert len(told.statuses) == 10
    assert told.statuses[0].startswith(f"Waiting at most 10 min for 4 MB in {folder.models_dir};")


def test_while_there_is_too_little_room_the_disk_is_left_alone(folder, disks, clock, make_saver, model):
    save(make_saver(), model())
    assert disks.attempts.count(folder.models_dir) == 1


def test_a_disk_that_only_an_attempt_can_tell_is_tried_now_and_then(folder, disks, clock, make_saver, model):
    disks.states[folder.path] = OSError(errno.EDQUOT, "Disk quota exceeded")
    save(make_saver(), model())
    assert disks.attempts.count(folder.models_dir) == 1 + 600 / module.RETRY_SECONDS


def test_a_stop_ends_the_waiting_at_once(disks, clock, make_saver, model):
    save(make_saver(), model(), is_over=lambda: clock.now > 1003.0)
    assert clock.now == 1004.0


def test_without_minutes_nothing_waits(disks, clock, make_saver, model, told):
    save(make_saver(wait_minutes=0.0), model())
    assert clock.now == 1000.0
    assert len(told.saved) == 2


def test_what_was_complete_of_it_makes_room_for_the_whole(folder, disks, clock, make_saver, model, told):
    disks.states[folder.path] = 4 * MB
    saver, one = make_saver(), model()
    clock.events[5.0] = lambda: disks.states.update({folder.path: ROOM})
    saver.save(one)
    assert one.part == [folder.models_dir / "a.safetensors"]
    save(saver)
    assert sorted(os.listdir(folder.models_dir)) == ["a.safetensors", "b.safetensors"]
    assert not saver.has_away


# --- nowhere ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_room(disks, tmp_path) -> None:
    disks.states[tmp_path] = 2 * MB


def test_what_fits_nowhere_is_an_error_that_names_every_place(
    folder, disks, no_room, clock, make_saver, model, told, tmp_path
):
    with pytest.raises(TrainingError) as error:
        save(make_saver(), model())
    assert clock.now - 1000.0 == pytest.approx(600.0, abs=1.0)
    for place in (tmp_path / "spare", tmp_path / "tmp"):
        assert f"{place}: only 2 MB free" in str(error.value)
        assert os.listdir(place) == []
    assert str(error.value).endswith("free some space, then start again, for there is no backup to resume from.")
    assert "nor anywhere else" in told.warnings[0]


def test_the_advice_names_a_backup_that_is_there_and_good(folder, disks, no_room, clock, make_saver, model):
    write_backup(folder.backup_dir, 2)
    write_backup(folder.backup_dir, 3, without=("model.safetensors",))
    with pytest.raises(TrainingError, match=r"then resume from the backup of step 2\.$"):
        save(make_saver(), model())


def test_room_elsewhere_that_comes_late_is_taken(disks, no_room, clock, make_saver, model, told, tmp_path):
    clock.events[60.0] = lambda: disks.states.update({tmp_path / "tmp": ROOM})
    save(make_saver(), model())
    assert {path.parent.parent for path in told.saved} == {tmp_path / "tmp"}


def test_a_run_goes_without_what_it_does_not_need(folder, disks, no_room, clock, make_saver, model, told):
    one = model()
    one.fails_run = False
    save(make_saver(), one)
    assert "nor anywhere else" in told.warnings[-1]


def test_an_error_that_no_disk_would_mend_is_one_at_once(disks, make_saver, folder):
    def write(home):
        return [], WeightsError("The layer 'x' has no name; save in diffusers' format instead.")

    with pytest.raises(TrainingError, match=r"has no name.*instead: start again, for there is no backup"):
        make_saver().save(FinalSave("model", folder.models_dir, 1, write, print))


# --- backups ----------------------------------------------------------------------------------------------------------


def test_a_resume_finds_a_backup_that_was_saved_elsewhere(folder, disks, clock, make_saver, backup, told):
    write_backup(folder.backup_dir, 2)
    save(make_saver(), backup())
    assert newest_usable(folder).step == 4
    assert "--resume goes on from it" in told.warnings[-1]
    assert told.backups[0][0].parent.parent.name == "spare"


def test_a_backup_that_was_saved_elsewhere_and_is_gone_is_said_to_be_so(folder, disks, clock, make_saver, backup, told):
    save(make_saver(), backup())
    ((path, _),) = told.backups
    path.rename(path.with_name("moved"))
    assert newest_usable(folder) is None
    assert damage(folder.backup_dir / "step-000000004") == f"it was saved to {path}, which is gone"


def test_a_backup_that_comes_home_takes_the_place_of_its_link(folder, disks, clock, make_saver, backup, tmp_path):
    clock.events[30.0] = lambda: disks.states.update({folder.path: ROOM})
    save(make_saver(), backup())
    assert not (folder.backup_dir / "step-000000004").is_symlink()
    assert newest_usable(folder).step == 4
    assert os.listdir(tmp_path / "spare") == []


def test_model_and_backup_share_a_folder_and_are_both_told(folder, disks, clock, make_saver, model, backup, told):
    save(make_saver(), backup(), model())
    assert len({path.parent for path in [*told.saved, told.backups[0][0]]}) == 1
    assert len(record(folder)["elsewhere"]) == 3
    assert "The backup of step 4 is in" in folder.read_exit()["text"]
    assert "The model is in" in folder.read_exit()["text"]


def test_where_no_link_can_be_made_it_is_said_what_to_move(folder, disks, clock, make_saver, backup, told, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", refuse)
    save(make_saver(), backup())
    assert f"move it to {folder.backup_dir}, then --resume goes on from it." in told.warnings[-1]
