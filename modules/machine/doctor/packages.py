"""Checks Python and the packages against the versions in pyproject.toml and requirements.txt."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from modules.config.attentions import ATTENTIONS
from modules.config.installation import IS_INSTALLED, PACKAGE, ROOT, SET_UP_AGAIN
from modules.config.optimizers import OPTIMIZERS
from modules.machine.doctor.CheckResult import CheckResult, State

REQUIREMENT = re.compile(r'([\w.-]+)==([^\s;]+)(?:\s*;\s*python_version\s*(>=|<)\s*"(\d+)\.(\d+)")?')
_OF_EXTRA = re.compile(r";.*\bextra\s*==")  # the mark of a requirement that only an optional feature has


def _without_optimizers(package: str) -> str:
    """What does not work without the package that provides these optimizers."""
    names = [facts.name for facts in OPTIMIZERS.values() if facts.package == package]
    return f"there {'are no optimizers' if len(names) > 1 else 'is no optimizer'} {' and '.join(names)}"


# Optional packages -> what does not work without them.
OPTIONAL = {
    "customtkinter": "there is no window",
    "tkinterdnd2": "nothing can be dropped on the window",
    **{facts.package: _without_optimizers(facts.package) for facts in OPTIMIZERS.values() if facts.package},
}

# Packages that Chorus or its libraries use if they are installed.
OF_ATTENTION = tuple(facts.package for facts in ATTENTIONS.values() if facts.package)
EXTRAS = ("bitsandbytes", "gguf", "triton", "triton-windows", "torchao", "torchvision", *OF_ATTENTION)


def check_python(version: tuple[int, ...] = sys.version_info[:3], is_64_bit: bool = sys.maxsize > 2**32) -> CheckResult:
    spoken = ".".join(map(str, version))
    oldest = oldest_python()
    values = {"version": spoken, "executable": sys.executable}
    text = f"{spoken}, {sys.executable}"
    if version[:2] < oldest:
        remedy = f"Install Python {'.'.join(map(str, oldest))} or newer. With it, {SET_UP_AGAIN}."
        return CheckResult("Python", "fails", f"{text} is too old for Chorus", remedy, values=values)
    if not is_64_bit:
        remedy = "Install a 64-bit Python; there is no PyTorch for this one."
        return CheckResult("Python", "fails", f"{text} has 32 bits", remedy, values=values)
    return CheckResult("Python", "ok", text, values=values)


def check_packages(
    pins: Mapping[str, str] | None = None, find_version: Callable[[str], str | None] | None = None
) -> CheckResult:
    """pins: package -> version, by default from requirements.txt. find_version: returns an installed package's.

    Of torch, every version of `torch_range` will do.
    """
    pins = read_pins() if pins is None else pins
    installed = {name: (find_version or installed_version)(name) for name in pins}
    missing = [name for name, version in installed.items() if version is None]
    # the part behind + is the build, such as cpu or cu130
    other = [name for name, version in installed.items() if version and version.split("+")[0] != pins[name]]
    versions, note = _spoken(torch_range()), ""
    if "torch" in other and _is_in_range(str(installed["torch"])):
        other.remove("torch")
        note = "" if pins["torch"] == versions else f", but torch {installed['torch']}: Chorus runs on {versions}"
    details = [f"{name} is missing" + (f": {OPTIONAL[name]}" if name in OPTIONAL else "") for name in missing]
    wanted = {name: f"tested with {pins[name]}" for name in other} | {"torch": f"Chorus runs on {versions}"}
    details += [f"{name} {installed[name]}, {wanted[name]}" for name in other]
    extras = {name: version for name in EXTRAS if (version := (find_version or installed_version)(name))}
    values = {"installed": installed, "pinned": dict(pins), "extras": extras}
    if not details:
        beside = ", ".join(f"{name} {version}" for name, version in extras.items())
        text = f"all {len(pins)} as pinned in requirements.txt{note}" + (f"; also {beside}" if beside else "")
        return CheckResult("packages", "ok", text, values=values)
    needed = [name for name in missing if name not in OPTIONAL]
    state: State = "fails" if needed else "warning"
    more = " The other checks need them, too." if needed else ""
    text = f"{len(missing)} missing, {len(other)} of another version than pinned in requirements.txt"
    return CheckResult("packages", state, text, _remedy() + more, tuple(details), values)


def read_pins(python: Sequence[Any] = sys.version_info) -> dict:
    """Package -> version, of the requirements of Chorus that apply to this Python. An installed Chorus requires no
    single version of torch, which then has the range."""
    pins = {"torch": _spoken(torch_range())} if IS_INSTALLED else {}
    for line in _requirements():
        match = REQUIREMENT.match(line)
        if not match:  # a comment
            continue
        name, version, sign, *of_python = match.groups()
        if sign is None or (tuple(python[:2]) >= tuple(map(int, of_python))) == (sign == ">="):
            pins[name] = version
    return pins


def oldest_python() -> tuple[int, int]:
    """The version in `requires-python`, parsed as text: tomllib is newer than the oldest supported Python."""
    if IS_INSTALLED:
        text = f'requires-python = "{importlib.metadata.metadata(PACKAGE)["Requires-Python"]}"'
    else:
        text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^requires-python = ">=(\d+)\.(\d+)"', text, re.MULTILINE)
    assert found is not None, f"requires-python is not in {text}"
    return int(found[1]), int(found[2])


def torch_range() -> tuple[tuple[int, int], tuple[int, int]]:
    """The oldest version of torch that Chorus runs on, and the first that is too new for it, from pyproject.toml."""
    if IS_INSTALLED:
        text = "\n".join(_requirements())
    else:
        text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    line = re.search(r"^torch[ <>].*", text, re.MULTILINE)
    bounds = [re.search(rf"{sign}(\d+)\.(\d+)", line[0]) for sign in (">=", "<")] if line else []
    (oldest, too_new) = ((int(bound[1]), int(bound[2])) for bound in bounds if bound)
    return oldest, too_new


def _is_in_range(version: str) -> bool:
    oldest, too_new = torch_range()
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and oldest <= (int(found[1]), int(found[2])) < too_new


def _spoken(versions: tuple[tuple[int, int], tuple[int, int]]) -> str:
    (major, oldest), (_, too_new) = versions
    return f"{major}.{oldest} to {major}.{too_new - 1}"


def _requirements() -> list[str]:
    """The lines of requirements.txt, which pip keeps as metadata of the installed package, beside optional ones."""
    if IS_INSTALLED:
        return [line for line in importlib.metadata.requires(PACKAGE) or [] if not _OF_EXTRA.search(line)]
    return (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()


def installed_version(package: str) -> str | None:
    """The installed version; None if the package is missing or its metadata is broken."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _remedy() -> str:
    if IS_INSTALLED:
        return f"{SET_UP_AGAIN[0].upper()}{SET_UP_AGAIN[1:]}, or install the versions that are named here."
    python = ROOT / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if python.exists() and Path(sys.prefix).resolve() != python.parents[1].resolve():
        return f"This is not the environment of Chorus: start with {python}, or install requirements.txt into this one."
    return "Run `python scripts/setup_env.py`, or install requirements.txt into this environment."
