"""A run started as the window starts it, on a process that waits for it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from modules.session.RunFolder import RunFolder


def run_on_standby(settings: Path, workspace: str) -> tuple[bool, int]:
    """Whether the run is the process that waited, and its exit code. To be called by `call_forked`."""
    import torch

    from modules.ui.models.RunModel import start_supervisor
    from modules.ui.models.Standby import Standby, StandbyPlan

    torch.multiprocessing.spawn = partial(torch.multiprocessing.start_processes, start_method="fork")
    standby = Standby(StandbyPlan("train", "sd15"))
    folder = RunFolder(workspace)
    folder.create()
    run = start_supervisor(folder, settings, False, 1.0, lambda kind, *asked: standby.take(*asked))
    return run is standby.process, run.wait()
