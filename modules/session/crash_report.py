"""The report of a failed run, safe to pass on: names, addresses and secrets are removed."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any

from modules.config.describe import settings_by_path
from modules.config.errors import UserError
from modules.config.files import load_values
from modules.config.visible_text import visible_text
from modules.session.backups import resume_advice
from modules.session.following import read_tail
from modules.session.out_of_memory import ADVICE
from modules.session.redaction import redact
from modules.session.RunFolder import RunFolder

LOG_LINES = 40


def crash_report(path: str | os.PathLike) -> str:
    """What happened to the run in the folder at `path` (rank, exception, signal, last log lines) and what to do.

    Secrets, mail and network addresses, and the names of the user, the machine and home folders are removed.
    """
    folder = RunFolder(path)
    try:
        record = folder.read_exit() or {}
    except OSError as error:
        record = {"text": f"exit.json can't be read ({error.strerror})"}
    rank = record.get("rank")
    rank = rank if isinstance(rank, int) else 0
    parts = [
        _section("What happened", _facts(record)),
        _section("What to do", [suggestion(record, folder)]),
        _section("Traceback", str(record.get("traceback") or "").splitlines()),
        _section(f"Last lines of log/rank-{rank}.log", read_tail(folder.log_path(rank), LOG_LINES)),
        _section("Last lines of log/supervisor.log", read_tail(folder.supervisor_log_path, LOG_LINES // 2)),
        _section("Last lines of log/window.log", read_tail(folder.window_log_path, LOG_LINES // 2)),
        _section("Settings", _settings(folder)),
        _section("Machine", [platform.platform(), f"Python {platform.python_version()}", *_versions()]),
    ]
    return redact(visible_text("\n\n".join(part for part in parts if part))) + "\n"


def suggestion(record: Mapping[str, Any], folder: RunFolder) -> str:
    """One sentence on what to try after a run that ended as `record` (exit.json) says."""
    kind, text = str(record.get("kind") or ""), str(record.get("text") or "")
    if kind == "user_error":
        return "Fix what the message names and start again."
    advice = resume_advice(folder)
    if text in ADVICE:
        return f"Do what the message says, then {advice}."
    if kind == "out_of_memory" or "out of memory" in text.lower() or "memory is full" in text.lower():
        return f"Lower batch_size, or switch model.gradient_checkpointing on, then {advice}."
    first = {
        "killed": "Close what else needs memory or lower batch_size",
        "hung": "Look at the stack traces next to the log and test the communication between the GPUs",
        "ended": "See the end of the log for what ended it",
        "lost": "See the end of the log for what ended it",
    }.get(kind)
    if first is None:
        return f"{advice[0].upper()}{advice[1:]}; if it happens again, report it with this text."
    return f"{first}, then {advice}."


def _facts(record: Mapping[str, Any]) -> list[str]:
    if not record:
        return ["There is no record of how the run ended."]
    names = ("status", "rank", "kind", "text", "signal", "exit_code", "phase")
    return [f"{name}: {record[name]}" for name in names if record.get(name) is not None]


def _settings(folder: RunFolder) -> list[str]:
    try:
        values = load_values(folder.config_path)
    except (UserError, OSError):
        return []
    found = ((path, _value_at(values, path)) for path, info in settings_by_path().items() if info.in_crash_report)
    return [f"{path}: {value}" for path, value in found if value is not None]


def _value_at(values: Any, path: str) -> Any:
    for name in path.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return values


def _versions() -> list[str]:
    """The versions of the main libraries, without importing them."""
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for name in ("torch", "diffusers", "transformers", "peft"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return found


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([f"--- {title} ---", *lines]) if lines else ""
