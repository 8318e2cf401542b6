"""Loading CustomTkinter without harm to the windows that are open."""

from __future__ import annotations

import contextlib
import filecmp
import importlib
import shutil
import sys
from pathlib import Path

from modules.config.atomic_file import new_file


def load_toolkit() -> None:
    """Import CustomTkinter; to be called before anything else that imports it.

    Its import copies its fonts into ~/.fonts, each time, into the files that are there. Every open window has mapped
    these into its memory, and is killed (SIGBUS) if it draws while one of them is cut short. It also takes for an error
    that another process has just made the folder.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # it says itself where it can't have its fonts
            Path("~/.fonts").expanduser().mkdir(exist_ok=True)
    copy = shutil.copy
    shutil.copy = _copy_what_differs
    try:
        importlib.import_module("customtkinter")
    finally:
        shutil.copy = copy


def _copy_what_differs(source: str, folder: str) -> Path:
    """A file that is there already stays as it is; another one takes its place at once, and whole."""
    target = Path(folder) / Path(source).name
    if not target.exists() or not filecmp.cmp(source, target, shallow=False):
        with new_file(target) as temporary:
            shutil.copyfile(source, temporary)
    return target
