"""Checks whether the settings of a run would be accepted on this machine, by a dry run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from modules.config.installation import ROOT
from modules.machine.can_start import StartFacts, blocking, device_problems
from modules.machine.doctor.CheckResult import CheckResult
from modules.machine.doctor.child import ChildAnswer, run_child
from modules.machine.doctor.hardware import Hardware
from modules.machine.Machine import Machine

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

DRY_RUN_SECONDS = 300  # it reads every image
REFUSED = 2  # exit code of scripts/train.py


def check_run_settings(
    config: TrainConfig, arguments: Sequence[str], hardware: Hardware, run: Callable[..., ChildAnswer] = run_child
) -> CheckResult:
    """Report the settings that can't work on this machine. arguments: of scripts/train.py, which yield `config`."""
    machine = Machine(hardware.gpus, hardware.cores, hardware.links)
    problems = device_problems(config, StartFacts(machine))
    # --resume: only the start itself should refuse a folder that already holds a run
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), *arguments, "--dry-run", "--resume"]
    answer = run(command, DRY_RUN_SECONDS, os.getcwd())
    refused = [problem.message for problem in blocking(problems)]
    if answer.code == REFUSED:
        refused += [line for line in answer.errors.strip().splitlines() if line not in refused]
    elif answer.code is None:
        refused.append(f"The dry run did not end within {DRY_RUN_SECONDS} s: see whether the images' disk answers.")
    elif answer.code != 0:
        refused.append(f"The dry run broke off: {answer.last_words}.")
    warnings = [problem.message for problem in problems if not problem.blocking]
    return _judge(refused, warnings, answer.output.strip().splitlines())


def _judge(refused: list[str], warnings: list[str], summary: list[str]) -> CheckResult:
    values = {"problems": refused, "warnings": warnings}
    if refused:
        text = f"the run would be refused for {len(refused)} reason{'s' * (len(refused) > 1)}"
        return CheckResult("settings", "fails", text, "Fix what is named above.", tuple(refused + warnings), values)
    if warnings:
        text = "a run could start, with doubts"
        return CheckResult("settings", "warning", text, "Check what is named above.", tuple(warnings), values)
    return CheckResult("settings", "ok", "a run could start", details=tuple(summary), values=values)
