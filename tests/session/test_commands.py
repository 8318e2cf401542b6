import os
import threading

import pytest

from modules.config.errors import UserError
from modules.session import FolderCommands as folder_commands
from modules.session.FolderCommands import FolderCommands, send_command
from modules.session.RunFolder import RunFolder
from modules.session.TrainCallbacks import TrainCallbacks
from modules.session.TrainCommands import COMMANDS, TrainCommands


class Warnings(TrainCallbacks):
    def __init__(self):
        self.texts = []

    def on_warning(self, text):
        self.texts.append(text)


@pytest.fixture
def run_folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    return folder


@pytest.fixture
def warnings():
    return Warnings()


@pytest.fixture
def clock(monkeypatch):
    """The time of a fake monotonic clock, in a list so that a test can change it."""
    now = [1000.0]
    monkeypatch.setattr(folder_commands.time, "monotonic", lambda: now[0])
    return now


def test_a_request_is_taken_once():
    commands = TrainCommands()
    commands.sample()
    commands.sample()
    commands.backup()
    commands.save()
    assert commands.take() == {"sample", "backup", "save"}
    assert commands.take() == frozenset()
    assert not commands.stopping


def test_a_stop_is_never_forgotten():
    commands = TrainCommands()
    assert not commands.stopping
    commands.stop()
    commands.stop()
    commands.sample()
    assert commands.stopping
    assert commands.take() == {"stop", "sample"}
    assert commands.take() == {"stop"}
    assert commands.stopping


def test_there_is_a_method_for_every_command():
    commands = TrainCommands()
    for name in COMMANDS:
        getattr(commands, name)()
    assert commands.take() == set(COMMANDS)


def test_requests_of_many_threads_are_each_taken():
    commands = TrainCommands()
    threads = [threading.Thread(target=getattr(commands, name)) for name in COMMANDS * 5]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert commands.take() == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_sent_command_arrives_and_its_file_is_gone(run_folder, warnings, name):
    commands = FolderCommands(run_folder, warnings)
    send_command(run_folder, name)
    assert commands.take() == {name}
    assert os.listdir(run_folder.commands_dir) == []
    assert warnings.texts == []


def test_a_stop_from_the_folder_is_seen_without_taking(run_folder, warnings):
    commands = FolderCommands(run_folder, warnings)
    send_command(run_folder, "stop")
    assert commands.stopping


def test_the_methods_work_beside_the_folder(run_folder, warnings):
    commands = FolderCommands(run_folder, warnings)
    send_command(run_folder, "sample")
    commands.backup()
    assert commands.take() == {"sample", "backup"}


@pytest.mark.parametrize("name", ["1.stop.cmd", "stop.cmd", "a.b c.stop.cmd"])
def test_a_command_can_be_made_by_hand(run_folder, warnings, name):
    commands = FolderCommands(run_folder, warnings)
    (run_folder.commands_dir / name).touch()
    assert commands.take() == {"stop"}


def test_the_folder_is_looked_at_no_more_than_twice_a_second(run_folder, warnings, clock):
    commands = FolderCommands(run_folder, warnings)
    assert commands.take() == frozenset()
    send_command(run_folder, "save")
    clock[0] += 0.4
    assert commands.take() == frozenset()
    clock[0] += 0.1
    assert commands.take() == {"save"}


def test_an_unknown_command_is_removed_and_reported(run_folder, warnings):
    commands = FolderCommands(run_folder, warnings)
    (run_folder.commands_dir / "1.explode.cmd").touch()
    assert commands.take() == frozenset()
    assert os.listdir(run_folder.commands_dir) == []
    assert len(warnings.texts) == 1
    assert "'explode'" in warnings.texts[0]


def test_files_that_are_no_commands_are_left_alone(run_folder, warnings):
    commands = FolderCommands(run_folder, warnings)
    (run_folder.commands_dir / "notes.txt").touch()
    (run_folder.commands_dir / "1.stop.cmd.tmp-1-0123abcd").touch()
    (run_folder.commands_dir / "2.stop.cmd").mkdir()
    assert commands.take() == frozenset()
    assert len(os.listdir(run_folder.commands_dir)) == 3
    assert warnings.texts == []


def test_commands_for_an_earlier_run_are_swept(run_folder, warnings):
    send_command(run_folder, "stop")
    commands = FolderCommands(run_folder, warnings)
    assert os.listdir(run_folder.commands_dir) == []
    assert commands.take() == frozenset()


def test_a_command_sent_while_the_run_was_loading_is_kept(run_folder, warnings):
    started = 1_700_000_000.0
    for name, age in (("1.backup.cmd", -5), ("2.stop.cmd", 5)):
        path = run_folder.commands_dir / name
        path.touch()
        os.utime(path, (started + age, started + age))
    assert FolderCommands(run_folder, warnings, run_started=started).take() == {"stop"}


def test_a_command_that_can_not_be_removed_counts_once(run_folder, warnings, clock, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    commands = FolderCommands(run_folder, warnings)
    send_command(run_folder, "sample")
    monkeypatch.setattr(folder_commands.os, "unlink", refuse)
    assert commands.take() == {"sample"}
    clock[0] += 1
    assert commands.take() == frozenset()
    assert len(warnings.texts) == 1


def test_a_folder_that_is_away_is_reported_once_and_then_used_again(run_folder, warnings, clock):
    commands = FolderCommands(run_folder, warnings)
    away = run_folder.commands_dir.rename(run_folder.path / "away")
    for _ in range(3):
        assert commands.take() == frozenset()
        clock[0] += 1
    assert len(warnings.texts) == 1
    away.rename(run_folder.commands_dir)
    send_command(run_folder, "save")
    assert commands.take() == {"save"}


def test_sending_an_unknown_command_is_refused(run_folder):
    with pytest.raises(ValueError, match="'explode'"):
        send_command(run_folder, "explode")


def test_sending_to_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="not the folder of a run"):
        send_command(RunFolder(tmp_path / "none"), "stop")
