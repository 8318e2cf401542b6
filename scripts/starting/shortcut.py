"""An icon that opens the window by a double click, where start-ui.sh opens in an editor."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from modules.config.errors import UserError
from modules.config.installation import IS_INSTALLED
from modules.session.atomic import write_text


def make_shortcut(command: Sequence[str], home: Path, platform: str) -> Path:
    """Writes it to where the system of `platform` (as sys.platform) looks for it, and returns the path.

    command: opens the window; its paths are absolute, so the icon is of no use once Chorus has been moved.
    Raises UserError where no icon can be made.
    """
    if platform == "win32":
        program = "chorus.exe in Python's Scripts folder" if IS_INSTALLED else "start-ui.bat"
        raise UserError(f"--shortcut: Windows needs none; double-click {program}, or send it to the desktop.")
    for word in command:
        if any(character in word for character in "\r\n"):
            raise UserError(f"--shortcut: {word!r} has a line break in its name, which no shortcut can hold.")
    if platform == "darwin":
        path, text = home / "Desktop" / "Chorus.command", f"#!/bin/bash\nexec {shlex.join(command)}\n"
    else:
        path, text = home / ".local" / "share" / "applications" / "chorus.desktop", _desktop_entry(command)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    path.chmod(0o755)
    return path


def _desktop_entry(command: Sequence[str]) -> str:
    """Source: https://specifications.freedesktop.org/desktop-entry-spec/latest/exec-variables.html."""
    line = " ".join(f'"{_escaped(word)}"' for word in command)
    line = line.replace("\\", "\\\\").replace("%", "%%")  # the escapes of the file, after those of the command
    lines = ("Type=Application", "Name=Chorus", "Comment=Train diffusion models", f"Exec={line}", "Terminal=true")
    return "\n".join(["[Desktop Entry]", *lines, "Categories=Graphics;", ""])


def _escaped(word: str) -> str:
    return "".join(f"\\{character}" if character in '"`$\\' else character for character in word)
