"""The speed that an earlier run of the same settings had on this machine. No Tk."""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.config.errors import UserError
from modules.config.files import load_config, to_values
from modules.session.events import read_events
from modules.session.following import CHUNK_BYTES, event_files
from modules.session.RunFolder import RunFolder
from modules.session.StepInfo import StepInfo

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

MAX_RUNS = 12  # looked at, the newest first
WARM_UP_STEPS = 3  # in which kernels are compiled and caches filled
MIN_STEPS = 5  # fewer say too little

# What a step computes does not depend on these.
_FREE = {"config_version", "workspace_dir", "cache_dir", "seed", "epochs", "max_steps", "tensorboard", "keep_awake"}
_FREE |= {"initial_port", "master_addr", "node_rank", "use_torchrun", "lr_scaling", "concepts", "schedule"}
_FREE |= {"sampling", "validation", "backup", "output", "csv", "wandb", "mlflow", "webhook"}
_FREE |= {"enable_multi_gpu", "world_size"}  # a launcher decides them; the ranks themselves are counted


def speed_key(config: TrainConfig) -> dict[str, Any]:
    """Everything in the settings that the duration of a step depends on."""
    values = to_values(config)
    optimizer = {name: value for name, value in values["optimizer"].items() if name != "learning_rate"}
    enabled = [concept for concept in config.concepts if concept.enabled]
    resolutions = sorted({size for each in enabled for size in each.resolutions or [each.resolution or 0]})
    kept = {name: value for name, value in values.items() if name not in _FREE}
    return {**kept, "optimizer": optimizer, "resolutions": resolutions}


def measured_step_seconds(config: TrainConfig, num_ranks: int, on_gpus: bool) -> float | None:
    """The median duration of a step at the end of the newest run beside `config.workspace_dir` that had the same
    `speed_key`, number of ranks and kind of device; None if there is none. Reads files: call it in a thread."""
    wanted = speed_key(config)
    for folder in _newest_runs(config.workspace_dir):
        try:
            if speed_key(load_config(folder.config_path)) != wanted or len(_rank_files(folder)) != num_ranks:
                continue
            seconds = _last_seconds(folder.event_path(0), on_gpus)
        except (UserError, OSError):  # being written, of a newer version, or damaged
            continue
        if len(seconds) >= MIN_STEPS:
            return statistics.median(seconds)
    return None


def _newest_runs(workspace: str) -> list[RunFolder]:
    try:
        parent = RunFolder(workspace).path.parent
        folders = [RunFolder(entry.path) for entry in os.scandir(parent) if entry.is_dir()]
        found = [(folder.config_path.stat().st_mtime, folder) for folder in folders if folder.config_path.is_file()]
    except (UserError, OSError):
        return []
    return [folder for _, folder in sorted(found, key=lambda one: one[0], reverse=True)][:MAX_RUNS]


def _rank_files(folder: RunFolder) -> list[Path]:
    return [path for path in event_files(folder) if path != folder.supervisor_event_path]


def _last_seconds(path: Path, on_gpus: bool) -> list[float]:
    """The durations of the last steps in an event file, without those after its start."""
    records, _ = read_events(path, max(0, path.stat().st_size - CHUNK_BYTES // 4))
    steps = [record.event for record in records if isinstance(record.event, StepInfo)]
    steps = [step for step in steps if step.step > WARM_UP_STEPS and (step.device != "cpu") == on_gpus]
    return [step.seconds for step in steps if step.seconds > 0]
