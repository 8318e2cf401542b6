"""Unused names for the folder of the next run."""

from __future__ import annotations

import os
import re

from modules.config.errors import UserError
from modules.session.following import is_running
from modules.session.RunFolder import RunFolder


def next_free_folder(path: str) -> str:
    """`path` with the first unused number appended: run -> run-2."""
    folder = next_name(path.rstrip("/\\"))
    while os.path.exists(os.path.expanduser(folder)):
        folder = next_name(folder)
    return folder


def next_name(folder: str) -> str:
    """The name after that of a folder, which may not exist yet: run -> run-2, run-2 -> run-3.

    The -3 of 1e-3, in the name of a run of a grid, is an exponent: rate=1e-3 -> rate=1e-3-2.
    """
    match = re.fullmatch(r"(.*)(?<![0-9][eE])-([0-9]{1,5})", folder, re.DOTALL)
    return f"{match[1]}-{int(match[2]) + 1}" if match else f"{folder}-2"


def free_folder_beside_run(path: str) -> str:
    """`next_free_folder` if a run is active in the folder at `path`, else "". Call it in a thread."""
    try:
        folder = RunFolder(path)
        return next_free_folder(path) if folder.path.is_dir() and is_running(folder) else ""
    except (UserError, OSError):  # reported when the folder is used
        return ""
