"""The job script for training under SLURM: one task per GPU; before its time is over the run is backed up and requeued.

%a in a file name or a setting stands for the number of the array task, as in SLURM's own file names.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from modules.config.errors import UserError
from modules.config.files import apply_overrides, config_from_values, load_values
from modules.config.presets import load_preset, merge_values
from modules.config.validation import check_settings
from modules.launch.command_text import Places, check_text, read_token_in_bash
from modules.session.run_token import token_path

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

MAX_TASKS = 10_000  # of an array; SLURM's own limit, MaxArraySize, is usually lower

_NUMBER = re.compile(r"[0-9]{1,6}")
_TIME = re.compile(r"(?:([0-9]{1,4})-)?([0-9]{1,6})(?::([0-9]{1,6}))?(?::([0-9]{1,6}))?")
_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7})(?::([0-9]{1,7}))?)?")
_ARRAY_TASK = '"$SLURM_ARRAY_TASK_ID"'


@dataclass(frozen=True)
class Job:
    """The resources to request, in the format of sbatch's options. Raises UserError, one sentence, for invalid values.

    gpus_per_node: a number, or a type and a number, as in "a100:4". time: such as "12:00:00" or "2-12". array: such as
    "0-3" or "1,5,9%2"; empty: a single job. backup_seconds: how long before the end of its time the job backs up.
    """

    nodes: str
    gpus_per_node: str
    time: str
    partition: str = ""
    account: str = ""
    qos: str = ""
    mem: str = ""
    cpus_per_task: str = "4"
    array: str = ""
    name: str = "chorus"
    backup_seconds: str = "120"

    def __post_init__(self) -> None:
        for option, value, smallest, largest in (
            ("--nodes", self.nodes, 1, 10_000),
            ("--cpus-per-task", self.cpus_per_task, 1, 1024),
            ("--backup-seconds", self.backup_seconds, 10, 65535),  # the largest that --signal takes
        ):
            if not _NUMBER.fullmatch(value) or not smallest <= int(value) <= largest:
                raise _refusal(option, value, f"a whole number from {smallest} to {largest}")
        for option, value, pattern, rule in (
            ("--gpus-per-node", self.gpus_per_node, r"([A-Za-z0-9_.-]+:)?[1-9][0-9]?", "1 to 99, as in 8 or a100:8"),
            ("--partition", self.partition, r"([\w.+-]+(,[\w.+-]+)*)?", "a name, or several with commas between"),
            ("--account", self.account, r"([\w.+@/-]+)?", "a name without spaces"),
            ("--qos", self.qos, r"([\w.+-]+)?", "a name without spaces"),
            ("--mem", self.mem, r"([0-9]{1,9}[KMGT]?)?", "a number with K, M, G or T, as in 200G"),
            ("--name", self.name, r"[\w.+-]+", "letters, digits and . _ + -"),
        ):
            if not re.fullmatch(pattern, value, re.ASCII) or value.startswith("-"):
                raise _refusal(option, value, rule)
        if _seconds(self.time) < 2 * int(self.backup_seconds):
            rule = f"twice the {self.backup_seconds} s of --backup-seconds, or more"
            raise _refusal("--time", self.time, rule)
        self.tasks()

    @property
    def ranks_per_node(self) -> int:
        return int(self.gpus_per_node.rpartition(":")[2])

    def tasks(self) -> list[int]:
        """The numbers of the array's tasks, sorted; empty without an array."""
        spec, percent, limit = self.array.partition("%")
        numbers: set[int] = set()
        for part in spec.split(",") if self.array else ():
            match = _RANGE.fullmatch(part)
            first, last, step = (int(text or 0) for text in match.groups()) if match else (0, 0, 0)
            last = last if match and match[2] else first
            if not match or last < first or match[3] == "0" or last - first >= MAX_TASKS:
                raise _refusal("--array", self.array, f'up to {MAX_TASKS} tasks, as in "0-7", "1,5,9" or "0-7%2"')
            numbers.update(range(first, last + 1, step or 1))
        if percent and (not _NUMBER.fullmatch(limit) or int(limit) == 0):
            raise _refusal("--array", self.array, 'a number of tasks at once behind the %, as in "0-7%2"')
        return sorted(numbers)


def job_script(job: Job, places: Places, overrides: list[str], resume: bool = False, preset: str = "") -> str:
    """A bash script for sbatch. Arguments behind the script's name are passed on to the training.

    overrides: settings to change, as "path=value". preset: the preset that the settings file is applied to, if any.
    Raises UserError if the settings can't be trained like this.
    """
    for override in overrides:
        check_text("--set", override)
    base = load_preset(preset) if preset else {}
    overrides = _with_folders_apart(job, base, places.config_path, overrides, resume)
    tasks = "%A_%a" if job.array else "%j"
    options = {
        "job-name": job.name,
        "nodes": job.nodes,
        "ntasks-per-node": str(job.ranks_per_node),
        "gpus-per-node": job.gpus_per_node,
        "cpus-per-task": job.cpus_per_task,
        "mem": job.mem,
        "time": job.time,
        "partition": job.partition,
        "account": job.account,
        "qos": job.qos,
        "array": job.array,
        "output": f"slurm-{tasks}.out",
        "open-mode": "append",  # a requeued job continues in the same file
        # sent to the tasks of srun, which back up; with the prefix B: only this script would get it
        "signal": f"USR1@{job.backup_seconds}",
    }
    script = shlex.join([places.python, f"{places.chorus.rstrip('/')}/scripts/train.py"])
    arguments = [*([f"--preset={preset}"] if preset else []), f"--config={places.config_path}"]
    arguments += [f"--set={override}" for override in overrides]
    command = " ".join([script, *(_word(text, bool(job.array)) for text in arguments), *(["--resume"] * resume)])
    # --cpus-per-task: since SLURM 22.05 srun does not inherit it from the job
    srun = f"srun --kill-on-bad-exit=1 --cpus-per-task={job.cpus_per_task}"
    lines = ["#!/usr/bin/env bash", "# Trains with Chorus under SLURM: sbatch THIS_FILE [--resume]"]
    lines += [f"#SBATCH --{name}={value}" for name, value in options.items() if value]
    lines += ["#SBATCH --requeue", "set -eu", "# a cluster's own lines, such as module load, go here"]
    token = read_token_in_bash(job_token_path(job, places.config_path))
    return "\n".join([*lines, f"cd -- {shlex.quote(places.folder)}", *token, f'{srun} {command} "$@"', ""])


def job_token_path(job: Job, config_path: str) -> str:
    """The file with the token of the tasks: beside the settings or, if each has its own, named after the job."""
    return token_path(job.name if "%a" in config_path else config_path)


def _with_folders_apart(job: Job, base: dict, config_path: str, overrides: list[str], resume: bool) -> list[str]:
    """`overrides`, with a separate run folder for each task of an array unless the settings already give one."""
    differ = any("%a" in text for text in (config_path, *overrides))
    tasks = job.tasks()
    folders = []
    for task in tasks if differ and tasks else [*tasks, None][:1]:
        config = _settings(base, config_path, overrides, task)
        _check(config, job, resume)
        folders.append(config.workspace_dir.rstrip("/"))
    if not tasks or 1 < len(set(folders)) == len(folders):
        return overrides
    if len(set(folders)) == 1:
        return [*overrides, f"workspace_dir={folders[0]}-%a"]
    shared = next(folder for folder in folders if folders.count(folder) > 1)
    raise UserError.at(
        "workspace_dir",
        f"{shared!r} is that of {folders.count(shared)} tasks of --array: give each its own, as with "
        "--set workspace_dir=workspace/%a.",
    )


def _settings(base: dict, config_path: str, overrides: list[str], task: int | None) -> TrainConfig:
    path, *overrides = (text if task is None else text.replace("%a", str(task)) for text in (config_path, *overrides))
    return config_from_values(apply_overrides(merge_values(base, load_values(path)), overrides), source=path)


def _check(config: TrainConfig, job: Job, resume: bool) -> None:
    """Check the settings now, before the job is queued. resume: the batch size is then the backup's."""
    config = replace(
        config, enable_multi_gpu=True, world_size=job.ranks_per_node, num_nodes=int(job.nodes), node_rank=0
    )
    check_settings(replace(config, batch_size_mode="per_device") if resume else config)


def _word(text: str, is_array: bool) -> str:
    """Quote as one word for bash."""
    parts = text.split("%a") if is_array else [text]
    return _ARRAY_TASK.join(shlex.quote(part) if part else "" for part in parts)


def _seconds(time: str) -> int:
    """Seconds of minutes, minutes:seconds, hours:minutes:seconds or days-hours[:minutes[:seconds]]."""
    match = _TIME.fullmatch(time)
    if match is None:
        raise _refusal("--time", time, "hours:minutes:seconds or days-hours, as in 12:00:00 or 2-12")
    days, *texts = match.groups()
    numbers = [int(text) for text in texts if text]
    if days or len(numbers) == 3:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    else:
        hours, (minutes, seconds) = 0, [*numbers, 0][:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _refusal(option: str, value: str, rule: str) -> UserError:
    return UserError(f"{option} {value[:60]!r}: it must be {rule}.")
