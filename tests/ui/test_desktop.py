"""The file manager and the notifications of the desktop."""

import base64
import re
import subprocess

import pytest

from modules.config.errors import UserError
from modules.ui.models import desktop


@pytest.fixture
def started(monkeypatch):
    """The commands that were started instead of programs of the desktop."""
    commands = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: commands.append(command))
    return commands


def installed(monkeypatch, *programs: str) -> None:
    monkeypatch.setattr(desktop.shutil, "which", lambda name: name if name in programs else None)


@pytest.mark.parametrize(("platform", "program"), [("linux", "xdg-open"), ("darwin", "open")])
def test_a_folder_is_shown_by_the_file_manager(platform, program, started, monkeypatch, tmp_path):
    monkeypatch.setattr(desktop.sys, "platform", platform)
    installed(monkeypatch, program)
    desktop.open_folder(tmp_path)
    assert started == [[program, str(tmp_path)]]
    installed(monkeypatch)
    with pytest.raises(UserError, match=f"{program} is not installed"):
        desktop.open_folder(tmp_path)
    with pytest.raises(UserError, match="is gone"):
        desktop.open_folder(tmp_path / "none")


def test_a_file_is_opened_by_the_program_that_the_desktop_has_for_it(started, monkeypatch, tmp_path):
    monkeypatch.setattr(desktop.sys, "platform", "linux")
    installed(monkeypatch, "xdg-open")
    with pytest.raises(UserError, match="is gone"):
        desktop.open_file(tmp_path / "a.mp4")
    (tmp_path / "a.mp4").touch()
    desktop.open_file(tmp_path / "a.mp4")
    assert started == [["xdg-open", str(tmp_path / "a.mp4")]]
    installed(monkeypatch)
    with pytest.raises(UserError, match="the file can't be opened"):
        desktop.open_file(tmp_path / "a.mp4")


def test_a_notification_is_shown_where_there_is_a_program_for_it(started, monkeypatch):
    monkeypatch.setattr(desktop.sys, "platform", "linux")
    installed(monkeypatch)
    desktop.notify("cat", "finished")
    assert started == []
    installed(monkeypatch, "notify-send")
    desktop.notify("cat", "--help")
    assert started == [["notify-send", "--app-name=Chorus", "--", "cat", "--help"]]
    monkeypatch.setattr(desktop.sys, "platform", "darwin")
    script = desktop.notification_command("cat", 'a "b" \\ c')[-1]
    assert script == 'display notification "a \\"b\\" \\\\ c" with title "cat"'


def test_windows_shows_a_toast_whose_texts_are_never_part_of_its_script(started, monkeypatch):
    monkeypatch.setattr(desktop.sys, "platform", "win32")
    installed(monkeypatch)
    title, text = "cat: failed", "grün ’; Remove-Item x; '\n" + 400 * "z"
    desktop.notify(title, text)
    ((program, *options, encoded),) = started
    assert program == "powershell.exe"
    assert options[-1] == "-EncodedCommand"
    assert len(encoded) < 8000  # of a command line
    script = base64.b64decode(encoded).decode("utf-16-le")
    assert "Remove-Item" not in script
    parts = re.findall(r"FromBase64String\('([A-Za-z0-9+/=]*)'\)", script)
    assert [base64.b64decode(part).decode() for part in parts] == [title, text[: desktop.MAX_TOAST]]
