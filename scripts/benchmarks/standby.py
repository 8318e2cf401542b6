"""A start from the window, where a process waits for it with its libraries imported."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from modules.config.errors import UserError
from modules.config.files import config_from_values, save_config
from modules.session.events import read_events
from modules.session.RunFolder import RunFolder
from modules.session.StepInfo import StepInfo
from modules.ui.models.RunModel import start_supervisor
from modules.ui.models.Standby import Kind, Standby, StandbyPlan
from modules.ui.models.StandbyKeeper import TakeStandby
from modules.ui.models.trained_images import image_script
from scripts.benchmarks.chorus_run import run_values
from scripts.benchmarks.compare import first_step
from scripts.benchmarks.material import model_folder
from scripts.benchmarks.results import Comparison, Target
from scripts.benchmarks.worker import WorkerArguments
from scripts.benchmarks.workers import alternated, environment_of, new_run_folder

FAMILY = "sd15"  # of the material
FIRST_STEP = Target(0.50)
_LOOK_SECONDS = 1.0


def compare_standby(folder: Path, method: str, device: str, count: int) -> Comparison:
    """Seconds from the request to the end of the first step, everything cached; by hand from the start of the process.

    The first pair fills the caches and does not count.
    """
    pairs = alternated(
        count + 1, lambda: _first_step(folder, method, device), lambda: first_step(folder, method, device).seconds
    )
    return Comparison(f"start to first step from the window, {method}, {device}", "s", FIRST_STEP, pairs[1:])


def compare_images(folder: Path, device: str, count: int) -> Comparison:
    """Seconds from the request to an image of one step, from a process that waits and from a new one."""
    pairs = alternated(
        count, lambda: _first_image(folder, device, waits=True), lambda: _first_image(folder, device, waits=False)
    )
    return Comparison(f"request to image, {device}", "s", None, pairs, sides=("a process that waits", "a new one"))


def _first_step(folder: Path, method: str, device: str) -> float:
    with new_run_folder(folder) as run_folder:
        values = run_values(WorkerArguments(folder, method, steps=1, turns=1, run_folder=run_folder))
        run = RunFolder(values["workspace_dir"])
        run.create()
        save_config(config_from_values(values), run.config_path)
        standby = _ready(StandbyPlan("train", FAMILY), device)
        asked = time.time()
        process = start_supervisor(run, run.config_path, False, asked, _taking(standby))
        code = process.wait()
        events, _ = read_events(run.event_path(0))
        finished = [record.time for record in events if isinstance(record.event, StepInfo)]
        if code or not finished:
            raise UserError(f"scripts/train.py failed: {run.window_log_path.read_text(encoding='utf-8')}")
        return finished[0] - asked


def _first_image(folder: Path, device: str, waits: bool) -> float:
    with new_run_folder(folder) as out:
        options = ["--base", str(model_folder(folder)), "--prompt", "a red circle", "--steps", "1", "--out", str(out)]
        options += ["--width", "64", "--height", "64"]
        os.environ.update(environment_of(device))
        standby = _ready(StandbyPlan("sample", FAMILY), device) if waits else None
        asked = time.time()
        image_script(options, _taking(standby) if standby else None).run()
        return time.time() - asked


def _ready(plan: StandbyPlan, device: str) -> Standby:
    """A process that has imported everything: its processor time, with that of its ranks, no longer grows."""
    os.environ.update(environment_of(device))
    standby = Standby(plan)
    used, before = 0.0, -1.0
    while used != before or used == 0:
        if not standby.is_waiting:
            raise UserError("scripts/starting/standby.py has ended: start it by hand to see why.")
        time.sleep(_LOOK_SECONDS)
        used, before = _processor_seconds(standby.process), used
    return standby


def _taking(standby: Standby) -> TakeStandby:
    def take(
        kind: Kind,
        script: str,
        arguments: Sequence[str],
        variables: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> subprocess.Popen[bytes] | None:
        return standby.take(script, arguments, variables, log)

    return take


def _processor_seconds(process: subprocess.Popen[bytes]) -> float:
    parent = psutil.Process(process.pid)
    times = [one.cpu_times() for one in (parent, *parent.children(recursive=True))]
    return sum(one.user + one.system for one in times)
