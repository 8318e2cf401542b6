"""Format the results of the checks, as text and as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from modules.config.visible_text import visible_line
from modules.machine.doctor.CheckResult import CheckResult

STATE_WIDTH = 9  # "warning" and two spaces
NAME_WIDTH = 16


def result_lines(result: CheckResult) -> list[str]:
    """The finding, with details and the remedy indented below. Safe to print, whatever was found."""
    indent = " " * STATE_WIDTH
    lines = [f"{result.state:<{STATE_WIDTH}}{result.name + ':':<{NAME_WIDTH}} {result.text}."]
    lines += [f"{indent}    {line}" for line in result.details]
    lines += [f"{indent}--> {result.remedy}"] if result.remedy else []
    return list(map(visible_line, lines))


def verdict(results: Sequence[CheckResult]) -> str:
    """The overall result as one sentence."""
    fails = [result.name for result in results if result.state == "fails"]
    num_warnings = sum(result.state == "warning" for result in results)
    warnings = f"{num_warnings or 'no'} warning{'s' * (num_warnings != 1)}"
    if fails:
        return f"Training would fail: {', '.join(fails)} (and {warnings})."
    return f"Training can start: {len(results)} checks, {warnings}."


def can_train(results: Sequence[CheckResult]) -> bool:
    return all(result.state != "fails" for result in results)


def as_values(results: Sequence[CheckResult]) -> dict[str, Any]:
    """The results as plain data, described in scripts/doctor.py."""
    return {
        "can_train": can_train(results),
        "verdict": verdict(results),
        "checks": [{**asdict(result), "details": list(result.details)} for result in results],
    }
