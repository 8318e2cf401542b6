"""Unused names for the folder of the next run."""

from __future__ import annotations

import os

from modules.config.errors import UserError
from modules.session.following import is_running
from modules.session.RunFolder import RunFolder


def next_free_folder(path: str) -> str:
    """`path` with the first unused number appended: run -> run-2."""
    parent, name = os.path.split(path.rstrip("/\\"))
    stem, dash, number = name.rpartition("-")
    if not (dash and number.isdecimal()):
        stem, number = name, "1"
    names = (os.path.join(parent, f"{stem}-{count}") for count in range(int(number) + 1, int(number) + 100_000))
    return next(one for one in names if not os.path.exists(os.path.expanduser(one)))


def free_folder_beside_run(path: str) -> str:
    """`next_free_folder` if a run is active in the folder at `path`, else "". Call it in a thread."""
    try:
        folder = RunFolder(path)
        return next_free_folder(path) if folder.path.is_dir() and is_running(folder) else ""
    except (UserError, OSError):  # reported when the folder is used
        return ""
