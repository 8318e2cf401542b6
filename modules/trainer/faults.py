"""Fault injection, to test how a run handles failing ranks: CHORUS_FAULT=kind@rank:step, such as CHORUS_FAULT=kill@1:3.

kind: kill (SIGKILL), stop (SIGSTOP), preempt (SIGUSR1), exit (with code 0), raise, oom, nan (the loss), sleep (for
ever), perturb (a trained weight). step: the optimizer step in which it happens, from 1.
"""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import torch

from modules.config.errors import UserError
from modules.distributed.environments import ATTEMPT_VARIABLE, FAULT_VARIABLE

if TYPE_CHECKING:
    from modules.trainer.TrainingLoop import TrainingLoop

SIGNALS = {"kill": "SIGKILL", "stop": "SIGSTOP", "preempt": "SIGUSR1"}
KINDS = (*SIGNALS, "exit", "raise", "oom", "nan", "sleep", "perturb")


def inject_fault(loop: TrainingLoop, text: str) -> None:
    """Makes this rank fail in the step that `text` names, if it names this rank.

    Only in the first attempt, so that restarts can be tested. Raises UserError unless it is written kind@rank:step.
    """
    match = re.fullmatch(rf"({'|'.join(KINDS)})@(\d+):(\d+)", text)
    if match is None:
        raise UserError(f"{FAULT_VARIABLE} {text!r}: write kind@rank:step with one of {', '.join(KINDS)}.")
    kind, rank, step = match[1], int(match[2]), int(match[3])
    if rank != loop.runtime.rank or int(os.environ.get(ATTEMPT_VARIABLE, "0")) > 0:
        return
    step_fn, has_happened = loop.step_fn, False

    def failing(model: Any, batch: Any) -> Any:
        nonlocal has_happened
        if loop.step + 1 != step:
            return step_fn(model, batch)
        if not has_happened:  # a step may have several micro-batches
            has_happened = True
            _fail(kind, loop)
        loss, count, metrics = step_fn(model, batch)
        return loss * float("nan") if kind == "nan" else loss, count, metrics

    loop.step_fn = failing


def _fail(kind: str, loop: TrainingLoop) -> None:
    if kind in SIGNALS:
        os.kill(os.getpid(), getattr(signal, SIGNALS[kind]))
    elif kind == "exit":
        os._exit(0)
    elif kind == "raise":
        raise RuntimeError("injected fault")
    elif kind == "oom":
        raise torch.OutOfMemoryError("injected fault")
    elif kind == "sleep":
        while True:
            time.sleep(1)
    elif kind == "perturb":
        with torch.no_grad():
            next(iter(loop.trainable.values())).add_(1e-3)
