"""How long a backup holds up the training: the state is copied between two steps, and written beside the next ones."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from modules.config.errors import UserError
from modules.session.events import read_events
from modules.session.RunFolder import RunFolder
from modules.session.StepInfo import StepInfo
from scripts.benchmarks.results import Comparison, Target
from scripts.benchmarks.worker import WorkerArguments
from scripts.benchmarks.workers import ROOT, environment_of, last_lines, new_run_folder, open_log

TARGET = Target(0.5)  # of a step
FILE = "held up.json"


def compare_backup(folder: Path, method: str, device: str, count: int, steps: int) -> Comparison:
    """Seconds for which each of `count` backups, `steps` apart, holds up the loop, beside the median step before it.

    The first one makes its folder and does not count.
    """
    with new_run_folder(folder) as run_folder, open_log() as log:
        every = (f"backup.every={steps}", "backup.unit=steps", "backup.at_end=false")
        arguments = WorkerArguments(folder, method, steps, count + 1, run_folder=run_folder, settings=every)
        command = [sys.executable, "-m", "scripts.benchmarks.backup", *arguments.as_options()]
        code = subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, env=environment_of(device)).returncode
        if code:
            raise UserError(f"the run with backups failed: {last_lines(log)}")
        held_up = json.loads((run_folder / FILE).read_text(encoding="ascii"))
        events, _ = read_events(RunFolder(run_folder / "run").event_path(0))
    seconds = [record.event.seconds for record in events if isinstance(record.event, StepInfo)]
    before = [median(seconds[number * steps : (number + 1) * steps]) for number in range(len(held_up))]
    pairs = list(zip(held_up, before, strict=True))[1:]
    return Comparison(f"backup, {method}, {device}", "s", TARGET, pairs, ("the loop waits", "a step"))


def train(arguments: WorkerArguments) -> None:
    """Chorus with backups; how long each one held up the loop goes into FILE of the run folder."""
    from contextlib import ExitStack

    from modules.config.files import apply_overrides, config_from_values
    from scripts.benchmarks.chorus_run import make_callbacks, make_trainer, run_values

    config = config_from_values(apply_overrides(run_values(arguments), arguments.settings))
    run = RunFolder(config.workspace_dir)
    run.create()
    held_up: list[float] = []
    with ExitStack() as stack:
        trainer = make_trainer(config, make_callbacks(run, stack))
        trainer.start()

        def back_up() -> None:
            started = time.perf_counter()
            trainer.backup()
            held_up.append(time.perf_counter() - started)

        trainer.loop.actions["backup"] = replace(trainer.loop.actions["backup"], run=back_up)
        trainer.train()
        trainer.backups.wait()
    (arguments.run_folder / FILE).write_text(json.dumps(held_up), encoding="ascii")


if __name__ == "__main__":
    train(WorkerArguments.parse())
