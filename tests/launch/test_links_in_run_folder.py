"""What somebody has linked in the place of a run's files is not written to; linked folders are used."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from modules.config.files import config_from_values, load_config
from modules.config.own_file import open_own
from modules.session.events import EventWriter
from modules.session.RunFolder import RunFolder
from modules.session.RunLock import RunLock, holder_here, is_held
from modules.ui.models.RunModel import start_supervisor
from tests.support.StartedRun import StartedRun

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows lets only administrators make links")

RUN = ("enable_multi_gpu=true", "world_size=2", "distributed_backend=gloo", "max_steps=2", "tensorboard=true")
SAVING = ("sampling.at_end=true", "sampling.samples.0.prompt=a cat", "sampling.samples.0.steps=1", "backup.at_end=true")
# With random names, and those of folders that a new run must find without work of another.
UNKNOWN_BEFORE = re.compile(r"\.tmp-|tfevents|^(models|backup)/")


def run(make_config, config_file, folder: Path) -> None:
    config = make_config(*RUN, *SAVING, f"workspace_dir={folder}")
    with StartedRun("spawn", config_file(config), folder, forked=True) as started:
        assert started.wait() == [0], started.output


def files_of(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def test_no_file_of_a_run_is_written_through_a_link(make_config, config_file, tmp_path):
    run(make_config, config_file, tmp_path / "run")
    written = [name for name in files_of(tmp_path / "run") if not UNKNOWN_BEFORE.search(name)]
    assert {"config.yaml", "exit.json", "models.json", "run.lock", "events/rank-1.jsonl"} <= {*written}
    names = [*written, "exit.reserve"]
    victims = {}
    for number, name in enumerate(names):
        victim = victims[name] = tmp_path / f"victim-{number}"
        victim.write_text("precious")
        link = tmp_path / "linked" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(victim)
    run(make_config, config_file, tmp_path / "linked")
    assert {name: victim.read_text() for name, victim in victims.items()} == dict.fromkeys(victims, "precious")
    linked = [name for name in written if (tmp_path / "linked" / name).is_symlink()]
    assert linked == []
    assert {*written} <= {*files_of(tmp_path / "linked")}


def test_a_run_writes_through_links_to_folders(make_config, config_file, tmp_path):
    (tmp_path / "disk" / "models").mkdir(parents=True)
    (tmp_path / "disk" / "run").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk" / "run", target_is_directory=True)
    (tmp_path / "run" / "models").symlink_to(tmp_path / "disk" / "models", target_is_directory=True)
    run(make_config, config_file, tmp_path / "run")
    assert (tmp_path / "run" / "models").is_symlink()
    assert files_of(tmp_path / "disk" / "models") == ["model.safetensors"]
    assert RunFolder(tmp_path / "disk" / "run").has_finished()


@pytest.fixture
def victim(tmp_path) -> Path:
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


def test_the_window_starts_a_run_without_writing_through_links(victim, tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    for path in (folder.config_path, folder.window_log_path):
        path.symlink_to(victim)
    config = config_from_values({"workspace_dir": str(folder.path)})
    folder.freeze_config(config)
    monkeypatch.setattr("modules.ui.models.RunModel.ROOT", tmp_path)  # whose scripts/train.py does not exist
    start_supervisor(folder, folder.config_path, False, 0.0).wait()
    assert victim.read_text() == "precious"
    assert load_config(folder.config_path) == config
    assert "train.py" in folder.window_log_path.read_text()


def test_a_link_in_place_of_the_lock_is_replaced_and_locks_nothing(victim, tmp_path):
    lock = tmp_path / "run.lock"
    lock.symlink_to(victim)
    with RunLock(victim):  # as of another run
        victim.write_text("precious")
        assert not is_held(lock)
        with RunLock(lock):
            assert holder_here(lock) == os.getpid()
    assert not lock.is_symlink()


def test_events_continue_in_a_file_of_their_own(victim, tmp_path):
    path = tmp_path / "rank-0.jsonl"
    path.symlink_to(victim)
    EventWriter(path, 0).close()
    with open_own(path, "ab") as file:
        file.write(b"more")
    assert (victim.read_text(), path.read_text().strip()) == ("precious", "more")
