"""Training in this process, as a start on one device does it, without the checks that precede it."""

from __future__ import annotations

import os

from modules.config.TrainConfig import TrainConfig
from modules.launch.plan import HerePlan, plan_launch
from modules.launch.run import run_training
from modules.machine.Machine import Machine
from modules.session.signals import stop_signals


def train_here(config: TrainConfig, resume: bool = False) -> int:
    """Returns the exit code."""
    plan = plan_launch(config, os.environ, Machine(), resume=resume, stop_signals=stop_signals())
    assert isinstance(plan, HerePlan)
    return run_training(plan)
