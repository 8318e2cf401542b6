"""What a training does between steps, beside the steps themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from modules.distributed.Heartbeat import Phase
from modules.trainer.Trigger import Trigger


@dataclass
class Action:
    """Runs between steps when its trigger is due or a command of its name arrives."""

    trigger: Trigger
    run: Callable[[], None]
    phase: Phase = "saving"
