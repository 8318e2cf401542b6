"""The desktop's own dialogs for files and folders. No Tk.

Tk's dialogs are those of the system on Windows and macOS. On Linux Tk draws its own, without bookmarks, recent folders
or previews, so that the programs with which GNOME and KDE show theirs are used where there are some.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SAVE_FOLDER = "workspace"  # where the window keeps runs, and the terminal looks for settings


@dataclass(frozen=True)
class PathQuestion:
    """kind: what is asked for; "new_file" is one to write. start: the folder to begin in, or a path in it; "": home.
    name: of a new file; its ending is added to a name without one. types: (label, patterns separated by spaces)."""

    kind: Literal["file", "folder", "new_file"]
    title: str
    start: str = ""
    name: str = ""
    types: Sequence[tuple[str, str]] = ()

    @property
    def start_folder(self) -> str:
        """The nearest existing folder around `start`, else the user's home."""
        path = Path(self.start).expanduser() if self.start else Path.home()
        if not path.is_absolute():
            path = Path.cwd() / path
        return str(next((folder for folder in (path, *path.parents) if folder.is_dir()), Path.home()))


def picker_command(question: PathQuestion) -> list[str] | None:
    """The command of the desktop's dialog; None if Tk's has to do."""
    if sys.platform in ("win32", "darwin"):
        return None
    programs = ["zenity", "kdialog"]
    if "KDE" in os.environ.get("XDG_CURRENT_DESKTOP", "").upper():
        programs.reverse()
    program = next((name for name in programs if shutil.which(name)), None)
    if program is None:
        return None
    return (_zenity if program == "zenity" else _kdialog)(question)


def pick(command: Sequence[str]) -> str | None:
    """Run the dialog and return the path; "" if it was closed, None if the program failed. Call it in a thread."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="surrogateescape"
        )
    except OSError:
        return None
    if done.returncode == 0:
        return done.stdout.rstrip("\n")
    return "" if done.returncode == 1 else None


def _zenity(question: PathQuestion) -> list[str]:
    folder = question.start_folder.rstrip("/") + "/"  # without the slash, the folder would be selected, not opened
    options = {
        "file": [f"--filename={folder}"],
        "folder": ["--directory", f"--filename={folder}"],
        "new_file": ["--save", "--confirm-overwrite", f"--filename={folder}{question.name}"],
    }[question.kind]
    filters = [f"--file-filter={label} | {patterns}" for label, patterns in question.types]
    return ["zenity", "--file-selection", f"--title={question.title}", *options, *filters]


def _kdialog(question: PathQuestion) -> list[str]:
    folder = question.start_folder
    if question.kind == "folder":
        return ["kdialog", "--title", question.title, "--getexistingdirectory", folder]
    what = "--getopenfilename" if question.kind == "file" else "--getsavefilename"
    filters = "\n".join(f"{label} ({patterns})" for label, patterns in question.types)
    return ["kdialog", "--title", question.title, what, os.path.join(folder, question.name), *filter(None, [filters])]
