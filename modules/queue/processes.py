"""Start the processes of a queue: the one that works it off, and one for each entry."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from modules.config.errors import UserError
from modules.config.installation import ROOT
from modules.config.own_file import open_own
from modules.machine.own_session import own_session
from modules.queue.QueueEntry import QueueEntry
from modules.queue.TrainingQueue import TrainingQueue

SCRIPTS = ROOT / "scripts" / "starting"


def start_entry(entry: QueueEntry, devices: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start the process that trains an entry on `devices`. Raises UserError if the system can't."""
    arguments = [str(entry.path), "--devices", ",".join(map(str, devices))]
    return _start(SCRIPTS / "queue_entry.py", arguments, entry.log_path)


def turn_on(queue: TrainingQueue) -> subprocess.Popen[bytes] | None:
    """Turn the queue on and see to it that a process works it off. Returns the process, if it had to be started."""
    queue.set_on(True)
    return continue_queue(queue)


def continue_queue(queue: TrainingQueue) -> subprocess.Popen[bytes] | None:
    """Start the process of a queue that is on and has none, as after a reboot; None if nothing had to be started."""
    if not queue.settings().is_on or queue.has_runner:
        return None
    return _start(SCRIPTS / "queue_runner.py", [str(queue.path)], queue.runner_log_path)


def _start(script: Path, arguments: Sequence[str], log_path: Path) -> subprocess.Popen[bytes]:
    """Run a script in a new session, which survives the window, the terminal and this process."""
    session: dict[str, Any] = own_session()
    try:
        with open_own(log_path, "ab") as log:
            return subprocess.Popen(
                [sys.executable, str(script), *arguments],
                env={**os.environ, "PYTHONIOENCODING": "utf-8:backslashreplace"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                **session,
            )
    except OSError as error:
        raise UserError(f"{script.name} can't be started ({error.strerror}): close other programs.") from error
