from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from modules.config.errors import UserError
from scripts import train_ui
from scripts.starting.shortcut import make_shortcut
from tests.support.waiting import PATIENCE_SECONDS

needs_posix = pytest.mark.skipif(os.name == "nt", reason="runs a shell script")


@pytest.fixture
def chorus(tmp_path) -> Path:
    """A folder of Chorus with an awkward name, whose start script says that it was started."""
    root = tmp_path / "a b'c\"d`e$f\\g%h ü"
    root.mkdir()
    (root / "start-ui.sh").write_text("#!/bin/sh\necho started\n", encoding="utf-8")
    (root / "start-ui.sh").chmod(0o755)
    return root


@needs_posix
def test_the_icon_of_macos_starts_the_window(chorus, tmp_path):
    path = make_shortcut([str(chorus / "start-ui.sh")], tmp_path, "darwin")
    assert path == tmp_path / "Desktop" / "Chorus.command"
    assert subprocess.check_output([path], timeout=PATIENCE_SECONDS) == b"started\n"


@needs_posix
def test_the_icon_of_linux_starts_the_window(chorus, tmp_path):
    path = make_shortcut([str(chorus / "start-ui.sh")], tmp_path, "linux")
    (command,) = re.findall("^Exec=(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    # as a desktop reads it: the escapes of the file, then those of the command, which are a shell's within such quotes
    as_read = command.replace("\\\\", "\\").replace("%%", "%")
    assert subprocess.check_output(["sh", "-c", as_read], timeout=PATIENCE_SECONDS) == b"started\n"


def test_windows_needs_no_icon(chorus, tmp_path):
    with pytest.raises(UserError, match=r"double-click start-ui\.bat"):
        make_shortcut([str(chorus / "start-ui.sh")], tmp_path, "win32")


@needs_posix
def test_a_desktop_that_can_not_be_written_is_named(chorus, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train_ui, "ROOT", chorus)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    (tmp_path / "home").touch()
    assert train_ui.main(["--shortcut"]) == 1
    assert str(tmp_path / "home") in capsys.readouterr().err
