"""An icon that opens the window by a double click, where start-ui.sh opens in an editor."""

from __future__ import annotations

import shlex
from pathlib import Path

from modules.config.errors import UserError
from modules.session.atomic import write_text


def make_shortcut(root: Path, home: Path, platform: str) -> Path:
    """Writes it to where the system of `platform` (as sys.platform) looks for it, and returns the path.

    root: of Chorus; the icon is of no use where that is moved. Raises UserError where there is none to be made.
    """
    script = str(root / "start-ui.sh")
    if platform == "win32":
        raise UserError("--shortcut: Windows needs none; double-click start-ui.bat, or send it to the desktop.")
    if any(character in script for character in "\r\n"):
        raise UserError(f"--shortcut: {script!r} has a line break in its name, which no shortcut can hold.")
    if platform == "darwin":
        path, text = home / "Desktop" / "Chorus.command", f"#!/bin/bash\nexec {shlex.quote(script)}\n"
    else:
        path, text = home / ".local" / "share" / "applications" / "chorus.desktop", _desktop_entry(script)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    path.chmod(0o755)
    return path


def _desktop_entry(script: str) -> str:
    """Source: https://specifications.freedesktop.org/desktop-entry-spec/latest/exec-variables.html."""
    quoted = "".join(f"\\{character}" if character in '"`$\\' else character for character in script)
    command = f'"{quoted}"'.replace("\\", "\\\\").replace("%", "%%")  # of the command, then of the file
    lines = ("Type=Application", "Name=Chorus", "Comment=Train diffusion models", f"Exec={command}", "Terminal=true")
    return "\n".join(["[Desktop Entry]", *lines, "Categories=Graphics;", ""])
