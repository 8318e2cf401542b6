"""The user's desktop: its file manager and its notifications. No Tk."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from modules.config.errors import UserError

MAX_TOAST = 300  # characters; a toast shows fewer, and a command line has an end
# Toasts need the id of an installed program: that of Windows PowerShell itself.
POWERSHELL_ID = r"{1AC14E77-02E7-4E5D-B744-2EB1AE5198B7}\WindowsPowerShell\v1.0\powershell.exe"


def open_folder(path: str | os.PathLike) -> None:
    """Show a folder in the file manager. Raises UserError if it is gone or the system has no file manager."""
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"{path} is gone: connect its disk again.")
    _open(path, "the folder can't be shown")


def open_file(path: str | os.PathLike) -> None:
    """Open a file with the program that the desktop has for it. Raises UserError if it is gone or there is none."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} is gone: connect its disk again.")
    _open(path, "the file can't be opened")


def _open(path: Path, problem: str) -> None:
    """Open a file or folder with the desktop. problem: what is impossible without it, for the message."""
    if sys.platform == "win32":
        try:
            os.startfile(path)
        except OSError as error:  # no program is associated with such files
            raise UserError(f"{error.strerror}, so {problem}: open {path} yourself.") from None
        return
    program = "open" if sys.platform == "darwin" else "xdg-open"
    if shutil.which(program) is None:
        raise UserError(f"{program} is not installed, so {problem}: open {path} yourself.")
    _start([program, str(path)])


def notification_command(title: str, text: str) -> list[str] | None:
    """The command that shows a notification on this desktop; None if there is no program for it."""
    if sys.platform == "darwin":
        return ["osascript", "-e", f"display notification {_quoted(text)} with title {_quoted(title)}"]
    if sys.platform == "win32":
        return toast_command(title, text)
    if shutil.which("notify-send") is None:
        return None
    return ["notify-send", "--app-name=Chorus", "--", title, text]


def toast_command(title: str, text: str) -> list[str]:
    """The command that shows a toast on Windows 10 or later, by its PowerShell.

    The texts are data in the script, never part of it: PowerShell takes even typographic quotes for quotes.
    """
    shown = [base64.b64encode(part[:MAX_TOAST].encode("utf-8", "replace")).decode() for part in (title, text)]
    lines = [
        "$u=[Text.Encoding]::UTF8",
        "[void][Windows.UI.Notifications.ToastNotificationManager,Windows.UI.Notifications,ContentType=WindowsRuntime]",
        "$m=[Windows.UI.Notifications.ToastNotificationManager]",
        "$x=$m::GetTemplateContent([Windows.UI.Notifications.ToastTemplateType]::ToastText02)",
        "$t=$x.GetElementsByTagName('text')",
        *(
            f"[void]$t.Item({number}).AppendChild($x.CreateTextNode($u.GetString([Convert]::FromBase64String('{part}'))))"
            for number, part in enumerate(shown)
        ),
        f"$m::CreateToastNotifier('{POWERSHELL_ID}').Show([Windows.UI.Notifications.ToastNotification]::new($x))",
    ]
    script = base64.b64encode(";".join(lines).encode("utf-16-le")).decode()
    return ["powershell.exe", "-NoProfile", "-NonInteractive", "-WindowStyle", "Hidden", "-EncodedCommand", script]


def notify(title: str, text: str) -> None:
    """Show a notification where the desktop can; one that can't be shown is no error."""
    command = notification_command(title, text)
    if command is not None:
        with contextlib.suppress(OSError):
            _start(command)


def _start(command: Sequence[str]) -> None:
    """Start a program of the desktop that outlives this process."""
    null, hidden = subprocess.DEVNULL, getattr(subprocess, "CREATE_NO_WINDOW", 0)
    subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True, creationflags=hidden)


def _quoted(text: str) -> str:
    """A string of AppleScript."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
