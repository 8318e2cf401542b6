"""Fault injection, to test how a run handles failing ranks: FAULT=kind@rank:step, such as FAULT=kill@1:3.

Off unless the environment variable is set. kind: kill (SIGKILL), stop (SIGSTOP), preempt (SIGUSR1), exit (with code 0),
raise, oom, nan (the loss), sleep (for ever), perturb (a trained weight). step: the optimizer step before which the
fault happens, from 1.
Only the first attempt fails (CHORUS_ATTEMPT is 0), so that restarts can be tested.
"""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING

from modules.config.errors import UserError

if TYPE_CHECKING:
    from modules.trainer.TrainingLoop import TrainingLoop

SIGNALS = {"kill": "SIGKILL", "stop": "SIGSTOP", "preempt": "SIGUSR1"}
KINDS = (*SIGNALS, "exit", "raise", "oom", "nan", "sleep", "perturb")


class Fault:
    """The fault of this rank. step: 0 for none."""

    def __init__(self, rank: int, text: str = ""):
        self.kind, self.step = "", 0
        if not text or int(os.environ.get("CHORUS_ATTEMPT", "0")) > 0:
            return
        match = re.fullmatch(rf"({'|'.join(KINDS)})@(\d+):(\d+)", text)
        if match is None:
            raise UserError(f"FAULT {text!r}: write kind@rank:step with one of {', '.join(KINDS)}.")
        if int(match[2]) == rank:
            self.kind, self.step = match[1], int(match[3])

    def before(self, step: int, loop: TrainingLoop) -> None:
        """Triggers the fault if it is due before optimizer step `step` (from 1)."""
        if step != self.step:
            return
        import torch

        if self.kind in SIGNALS:
            os.kill(os.getpid(), getattr(signal, SIGNALS[self.kind]))
        elif self.kind == "exit":
            os._exit(0)
        elif self.kind == "raise":
            raise RuntimeError("injected fault")
        elif self.kind == "oom":
            raise torch.OutOfMemoryError("injected fault")
        elif self.kind == "sleep":
            while True:
                time.sleep(1)
        elif self.kind == "perturb":
            with torch.no_grad():
                next(iter(loop.trainable.values())).add_(1e-3)

    def spoils_loss(self, step: int) -> bool:
        return self.kind == "nan" and step == self.step
