"""Load CustomTkinter without harm to other open windows."""

from __future__ import annotations

import contextlib
import filecmp
import importlib
import shutil
import sys
from pathlib import Path

from modules.config.atomic_file import new_file


def load_toolkit() -> None:
    """Import CustomTkinter. Call it before anything else imports it.

    Its import copies its fonts to ~/.fonts each time, overwriting the existing files. Every open window has these
    mapped into memory and is killed (SIGBUS) if it draws while one of them is truncated. It also fails if another
    process has just created the folder.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # CustomTkinter itself reports missing fonts
            Path("~/.fonts").expanduser().mkdir(exist_ok=True)
    copy = shutil.copy
    shutil.copy = _copy_what_differs  # type: ignore[assignment] # for its two arguments alone
    try:
        importlib.import_module("customtkinter")
    finally:
        shutil.copy = copy


def _copy_what_differs(source: str, folder: str) -> Path:
    """Copy only files that differ, and replace them atomically."""
    target = Path(folder) / Path(source).name
    if not target.exists() or not filecmp.cmp(source, target, shallow=False):
        with new_file(target) as temporary:
            shutil.copyfile(source, temporary)
    return target
