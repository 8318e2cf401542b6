"""Checks that the other machines of a run can be reached and have the same versions and settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from modules.config.errors import UserError
from modules.launch.node_check import check_nodes
from modules.launch.NodeMeeting import CLOCK
from modules.machine.doctor.CheckResult import CheckResult

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

WAIT_SECONDS = 120  # for the user to start the doctor on the other machines


def check_other_nodes(
    config: TrainConfig, tell: Callable[[str], None], wait_seconds: float = WAIT_SECONDS
) -> CheckResult:
    """tell: called with the machines that this one waits for; the doctor has to run on all of them."""
    try:
        found = check_nodes(config, tell, wait_seconds=wait_seconds)
    except UserError as error:
        remedy = "Then start the doctor on all machines again, within two minutes."
        return CheckResult("machines", "fails", str(error).rstrip("."), remedy)
    *lines, alike = found
    if any(line.startswith(CLOCK) for line in lines):
        remedy = "Set the clocks: commands, logs and backups go by them."
        return CheckResult("machines", "warning", f"{alike}; their clocks differ", remedy, tuple(lines))
    return CheckResult("machines", "ok", alike, details=tuple(lines))
