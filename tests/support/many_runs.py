"""Run folders that nobody has trained, made by the event writer's own lines; a process that is killed over their index.

python -m tests.support.many_runs FOLDER STEP: refreshes the index of FOLDER, and is killed before the STEP-th time that
it replaces a file.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from modules.config.files import config_from_values, save_config
from modules.runs.RunIndex import RunIndex
from modules.session.event_types import FinishedEvent, SampleEvent, SavedEvent, StartedEvent
from modules.session.events import EventRecord, encode
from modules.session.RunFolder import RunFolder
from modules.session.StepInfo import StepInfo

START = 1_700_000_000.0


def make_run(
    path: Path, steps: int = 20, started: float = START, status: str = "finished", values: dict[str, Any] | None = None
) -> RunFolder:
    """A run of `steps` steps, of 2 s and 4 images each, whose loss in step n is 1 / n. status: "" for no record."""
    folder = RunFolder(path)
    folder.events_dir.mkdir(parents=True)
    if values is not None:
        save_config(config_from_values(values), folder.config_path)
    add_events(folder, [(started, StartedEvent(started - 1))])
    add_events(folder, [(started + 2 * number, step_of(number, steps)) for number in range(1, steps + 1)])
    sample = folder.samples_dir / f"step-{steps:09d}" / "000_a cat_seed42.png"
    end = started + 2 * steps
    add_events(folder, [(end, SampleEvent(str(sample), "a cat", steps)), (end, SavedEvent("models/m", steps))])
    if status:
        add_events(folder, [(end, FinishedEvent(steps))])
        # by hand: 500 of them, flushed to disk, would take 5 s
        folder.exit_path.write_text(json.dumps({"status": status, "time": end, "rank": 0}))
    return folder


def step_of(number: int, total: int = 20, **changes: Any) -> StepInfo:
    values = {"loss": 1 / number, "smooth_loss": 0.5, "samples": 4, "seconds": 2.0, "lr": 1e-4, "grad_norm": None}
    return StepInfo(**{"epoch": 1, "step": number, "steps_total": total, **values, **changes})


def add_events(folder: RunFolder, events: list, rank: int = 0) -> None:
    with open(folder.event_path(rank), "ab") as file:
        file.writelines(encode(EventRecord(when, rank, event)) for when, event in events)


def main(folder: str, step: int) -> None:
    left, replace = step, os.replace

    def counting(*arguments: Any, **options: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*arguments, **options)

    os.replace = counting
    RunIndex(folder).refresh()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
