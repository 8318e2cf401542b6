"""What the system must bring: a Python that packages are built for, with its modules venv and tkinter."""

import importlib.util
import platform
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from scripts.setup.SetupError import SetupError

# What PyPI has builds of the pinned torch for. find_python.sh and start.bat look for a Python in the same range.
OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 14)
MACHINES = {"win32": ("AMD64",), "darwin": ("arm64",), "linux": ("x86_64", "aarch64")}
OLDEST_GLIBC, OLDEST_MACOS = (2, 28), (14, 0)

INSTALL_ANOTHER = "install Python 3.13 from https://www.python.org or with your package manager and start again."

# What to do when a part of Python that the system packages separately is missing.
REMEDIES = {
    "venv": {
        "debian": "run `sudo apt install python{version}-venv`",
        "macos": "run `brew install python@{version}`",
        "windows": "run the Python installer again and tick pip",
        "other": "install your system's package with Python's venv and ensurepip",
    },
    "tkinter": {
        "debian": "run `sudo apt install python{version}-tk`",
        "fedora": "run `sudo dnf install python3-tkinter`",
        "arch": "run `sudo pacman -S tk`",
        "macos": "run `brew install python-tk@{version}`",
        "windows": "run the Python installer again and tick tcl/tk",
        "other": "install your system's package with Python's tkinter",
    },
}


class Python(NamedTuple):
    """A Python and the system it is built for.

    platform: as sys.platform. machine: as platform.machine(), but on Windows what the Python is built for: one for
    x86-64 runs on ARM too. libc: the name and version of the C library on Linux. macos: the version of macOS.
    """

    version: "tuple[int, ...]"
    is_64_bit: bool
    platform: str
    machine: str
    libc: "tuple[str, str]" = ("", "")
    macos: str = ""


def this_python() -> Python:
    machine = {"win-amd64": "AMD64", "win-arm64": "ARM64"}.get(sysconfig.get_platform(), platform.machine())
    is_64_bit = sys.maxsize > 2**32
    return Python(sys.version_info[:3], is_64_bit, sys.platform, machine, platform.libc_ver(), platform.mac_ver()[0])


def check_python(python: Python) -> None:
    """Raises SetupError if there is no PyTorch for `python`: pip would say so only in riddles, and after minutes."""
    name = f"Python {python.version[0]}.{python.version[1]}"
    if tuple(python.version[:2]) < OLDEST_PYTHON:
        oldest = _spoken(OLDEST_PYTHON)
        raise SetupError(f"{name} is too old for Chorus, which needs {oldest} or newer; {INSTALL_ANOTHER}")
    if tuple(python.version[:2]) > NEWEST_PYTHON:
        newest = _spoken(NEWEST_PYTHON)
        raise SetupError(f"{name} is too new: PyTorch is built for Pythons up to {newest} so far; {INSTALL_ANOTHER}")
    if not python.is_64_bit:
        raise SetupError(f"This {name} is a 32-bit build, which PyTorch does not support; install the 64-bit one.")
    if python.machine not in MACHINES.get(python.platform, ()):
        raise SetupError(_not_built_for(python))
    if python.platform == "darwin" and _numbers(python.macos) < OLDEST_MACOS:
        raise SetupError(f"macOS {python.macos} is too old for PyTorch, which needs {OLDEST_MACOS[0]} or newer.")
    if python.platform == "linux":
        libc, version = python.libc
        if libc != "glibc" or _numbers(version) < OLDEST_GLIBC:
            found = f"glibc {version}" if libc == "glibc" else "another C library, such as musl"
            raise SetupError(
                f"PyTorch needs a Linux with glibc {_spoken(OLDEST_GLIBC)} or newer, and this one has {found}; use a "
                "newer distribution, or a container of one."
            )


def check_venv_module(present: bool) -> None:
    """Raises SetupError if this Python can't make virtual environments (Debian packages that separately)."""
    if not present:
        raise SetupError(f"Python's venv module is missing or incomplete; {remedy('venv')} and start again.")


def check_tkinter(present: bool, for_window: bool, for_tests: bool, say: "Callable[[str], None]") -> None:
    """Raises SetupError if the window is wanted without tkinter; the tests without it say so; training needs none."""
    if present:
        return
    sentence = f"Python's tkinter, which the window of Chorus needs, is missing; {remedy('tkinter')}"
    if for_window:
        raise SetupError(sentence + " and start again.")
    if for_tests:
        say("Warning: " + sentence + " to run the tests of the window.")


def remedy(
    part: str,
    platform: str = sys.platform,
    os_release: "str | None" = None,
    version: "tuple[int, ...]" = sys.version_info[:3],
) -> str:
    """What to do on this system when `part` of Python ("venv" or "tkinter") is missing.

    platform: as sys.platform. os_release: the text of /etc/os-release; by default from this machine.
    version: of the Python that lacks it, which need not be the system's own.
    """
    if os_release is None:
        release = Path("/etc/os-release")
        os_release = release.read_text(encoding="utf-8") if release.exists() else ""
    system = {"darwin": "macos", "win32": "windows"}.get(platform)
    if system is None:
        ids = " ".join(re.findall(r"^ID(?:_LIKE)?=\"?([^\"\n]*)", os_release, re.MULTILINE)).split()
        system = next((name for name in ids if name in REMEDIES[part]), "debian" if "ubuntu" in ids else "other")
    return REMEDIES[part][system].format(version=_spoken(version[:2]))


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


def _not_built_for(python: Python) -> str:
    if python.platform == "darwin":
        return (
            "PyTorch is no longer built for Intel Macs, so Chorus can't run on one; on a Mac with Apple silicon this "
            "Python is an Intel one: install the one for Apple silicon."
        )
    if python.platform == "win32":
        return "PyTorch is not built for Windows on ARM, so Chorus can't run on it."
    return f"PyTorch is not built for {python.machine} on {python.platform}, so Chorus can't run on this machine."


def _numbers(version: str) -> "tuple[int, ...]":
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _spoken(version: "tuple[int, ...]") -> str:
    return ".".join(map(str, version))
