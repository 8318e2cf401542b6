"""What the system must bring: a Python that fits, with its modules venv and tkinter."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

from scripts.setup.SetupError import SetupError

OLDEST_PYTHON = (3, 10)

# What to do when a part of Python that the system packages separately is missing.
REMEDIES = {
    "venv": {
        "debian": "run `sudo apt install python3-venv`",
        "macos": "run `brew install python`",
        "windows": "run the Python installer again and tick pip",
        "other": "install your system's package with Python's venv and ensurepip",
    },
    "tkinter": {
        "debian": "run `sudo apt install python3-tk`",
        "fedora": "run `sudo dnf install python3-tkinter`",
        "arch": "run `sudo pacman -S tk`",
        "macos": "run `brew install python-tk`",
        "windows": "run the Python installer again and tick tcl/tk",
        "other": "install your system's package with Python's tkinter",
    },
}


def check_python(version: "tuple[int, ...]") -> None:
    """Raises SetupError if `version` (as sys.version_info) is too old."""
    if tuple(version[:2]) < OLDEST_PYTHON:
        raise SetupError(
            f"Python {version[0]}.{version[1]} is too old for Chorus, which needs {'.'.join(map(str, OLDEST_PYTHON))} "
            "or newer; install one from https://www.python.org or with your package manager and start again."
        )


def check_venv_module(present: bool) -> None:
    """Raises SetupError if this Python can't make virtual environments (Debian packages that separately)."""
    if not present:
        raise SetupError(f"Python's venv module is missing or incomplete; {remedy('venv')} and start again.")


def check_tkinter(present: bool, for_window: bool, for_tests: bool, say) -> None:
    """Raises SetupError if the window is wanted without tkinter; the tests without it say so; training needs none."""
    if present:
        return
    sentence = f"Python's tkinter, which the window of Chorus needs, is missing; {remedy('tkinter')}"
    if for_window:
        raise SetupError(sentence + " and start again.")
    if for_tests:
        say("Warning: " + sentence + " to run the tests of the window.")


def remedy(part: str, platform: "str | None" = None, os_release: "str | None" = None) -> str:
    """What to do on this system when `part` of Python ("venv" or "tkinter") is missing.

    platform: as sys.platform. os_release: the text of /etc/os-release; both by default from this machine.
    """
    platform = platform or sys.platform
    if os_release is None:
        release = Path("/etc/os-release")
        os_release = release.read_text(encoding="utf-8") if release.exists() else ""
    system = {"darwin": "macos", "win32": "windows"}.get(platform)
    if system is None:
        ids = " ".join(re.findall(r"^ID(?:_LIKE)?=\"?([^\"\n]*)", os_release, re.MULTILINE)).split()
        system = next((name for name in ids if name in REMEDIES[part]), "debian" if "ubuntu" in ids else "other")
    return REMEDIES[part][system]


def has_venv_module() -> bool:
    return importlib.util.find_spec("venv") is not None and importlib.util.find_spec("ensurepip") is not None


def has_tkinter(python: str) -> bool:
    # really imported, and by that Python: a file of tkinter may be there without the library that it loads
    return exit_code([python, "-c", "import tkinter"]) == 0


def exit_code(command: "list[str]") -> int:
    try:
        return subprocess.call(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:  # a file that can't be started, as a half-written one
        return -1
