"""The backups in a run folder: list them, check them, and choose the one that a run resumes from."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from modules.config.atomic_file import rename
from modules.config.errors import UserError
from modules.session.atomic import remove_folder
from modules.session.manifest import MANIFEST_NAME, check_manifest, listed_files
from modules.session.RunFolder import RunFolder

STATE_NAME = "state.json"
ENGINE = "engine"  # the entry of a state.json that TrainingEngine has written

_NAME = re.compile(r"(aside-)?step-(\d{1,18})")
_TENSOR_FILE = re.compile(r"(\w+)(?:-(\d{5})-of-(\d{5}))?\.safetensors")
_Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class BackupInfo:
    """A backup. time: when it was completed, in Unix seconds. num_bytes: total size of its files.

    is_aside: it was set aside when the run went back to an earlier one, so a run does not resume from it.
    """

    path: Path
    step: int
    time: float
    num_bytes: int
    is_aside: bool


def list_backups(folder: RunFolder) -> list[BackupInfo]:
    """The backups of the run, latest step first; empty if the disk can't be read."""
    try:
        return find_backups(folder.backup_dir)
    except OSError:
        return []


def find_backups(backup_dir: Path) -> list[BackupInfo]:
    """The backups in a folder, latest step first. Raises OSError if the folder exists but can't be read."""
    try:
        names = os.listdir(backup_dir)
    except FileNotFoundError:
        return []
    found = [
        info
        for name in names
        if (match := _NAME.fullmatch(name)) and (info := _look_at(backup_dir / name, match)) is not None
    ]
    return sorted(found, key=lambda info: (-info.step, info.is_aside))


def newest_usable(folder: RunFolder) -> BackupInfo | None:
    """The backup to resume from, as far as that can be decided without reading its tensors."""
    backups = (info for info in list_backups(folder) if not info.is_aside)
    return next((info for info in backups if damage(info.path, contents=False) is None), None)


def state_to_resume(folder: RunFolder) -> dict[str, Any] | None:
    """The state.json of the backup that a run of the diffusion trainer would resume from; None if there is none."""
    backup = newest_usable(folder)
    state = None if backup is None else json.loads((backup.path / STATE_NAME).read_bytes())
    return None if state is None or ENGINE in state else state


def resume_advice(folder: RunFolder) -> str:
    """What to do once the cause of a failure is fixed, as the end of a sentence. Names a backup only if it exists."""
    backup = newest_usable(folder)
    if backup is None:
        return "start again; there is no backup to resume from"
    return f"resume from the backup of step {backup.step}"


def stopped_at_once(folder: RunFolder) -> str:
    """The message of a run that ended without a final backup, with the backup that a resume would start from."""
    backup = newest_usable(folder)
    kept = "there is no backup to resume from" if backup is None else f"the last backup is of step {backup.step}"
    return f"Stopped at once; {kept}"


def damage(path: Path, contents: bool = True) -> str | None:
    """Why a run can't resume from the backup at `path`, in words; None if it can.

    contents: compare every byte with what was written, which reads all of it.
    """
    if path.is_symlink() and not path.exists():
        return f"it was saved to {os.readlink(path)}, which is gone"
    problem = check_manifest(path, [STATE_NAME], contents) or _missing(path, "model", "optimizer")
    if problem is not None:
        return problem
    try:
        text = (path / STATE_NAME).read_bytes()
        values = json.loads(text, parse_constant=_refuse_constant)
        of_engine = isinstance(values, dict) and ENGINE in values
        state = (_LoopState if of_engine else _RunState).model_validate(values)
    except ValidationError as error:
        return f"{STATE_NAME} {_first_problem(error)}"
    except (OSError, ValueError, RecursionError) as error:
        return f"{STATE_NAME} can't be read ({error})"
    name = _NAME.fullmatch(path.name)
    if name is not None and int(name[2]) != state.step:
        return f"{STATE_NAME} is of step {state.step}, not of the step in the folder's name"
    return _missing(path, "ema") if state.ema else None


def part_name(tensors: str, number: int = 0, count: int = 1) -> str:
    """The name, without extension, of file `number` (from 0) of `count` files that the tensors are divided among."""
    return tensors if count == 1 else f"{tensors}-{number + 1:05d}-of-{count:05d}"


def part_count(name: str) -> int:
    """The number of files of which `part_name` has named one."""
    match = _TENSOR_FILE.fullmatch(f"{name}.safetensors")
    return int(match[3]) if match and match[3] else 1


def tensor_files(path: Path) -> dict[str, list[str]]:
    """What the tensors of a backup are ("model", "optimizer" ...) -> the names of their files, in order.

    The backup must have passed `check_manifest`.
    """
    found: dict[str, list[str]] = {}
    for name in sorted(listed_files(path)):
        if match := _TENSOR_FILE.fullmatch(name):
            found.setdefault(match[1], []).append(name)
    return found


def go_back_to(folder: RunFolder, step: int) -> None:
    """Make the backup of `step` the latest, so that a resume starts from it. Later ones are set aside, not deleted.

    Raises UserError if it does not exist or is damaged.
    """
    found = list_backups(folder)
    chosen = next((info for info in found if info.step == step), None)
    if chosen is None:
        raise UserError(f"There is no backup of step {step} in {folder.backup_dir} any more: choose another one.")
    problem = damage(chosen.path)
    if problem is not None:
        raise UserError(f"The backup of step {step} is damaged ({problem}): choose an earlier one.")
    try:
        for info in found:
            if info.step > step and not info.is_aside:
                _move(info.path, info.path.with_name(f"aside-{info.path.name}"))
        if chosen.is_aside:
            _move(chosen.path, chosen.path.with_name(chosen.path.name.removeprefix("aside-")))
    except OSError as error:
        raise UserError(
            f"The backups in {folder.backup_dir} can't be renamed ({error.strerror}): check its disk."
        ) from error


def _missing(path: Path, *needed: str) -> str | None:
    """The first file that the manifest does not list of those that must hold the tensors in `needed`."""
    try:
        files = tensor_files(path)
    except OSError as error:
        return f"{MANIFEST_NAME} can't be read ({error.strerror})"
    for tensors in needed:
        found = files.get(tensors, [])
        count = part_count(found[0].removesuffix(".safetensors")) if found else 1
        for number in range(count):
            if (name := f"{part_name(tensors, number, count)}.safetensors") not in found:
                return f"{MANIFEST_NAME} does not list {name}"
    return None


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Optimizer(_Strict):
    """optimizers: several by their names, beside which the other fields are empty."""

    kind: str
    groups: list[dict[str, Any]]
    state: dict[str, dict[str, Any]]
    optimizers: dict[str, _Optimizer] = Field(default_factory=dict)


class _Run(_Strict):
    global_batch: Annotated[int, Field(ge=1)]
    samples: str


class _LoopState(_Strict):
    """The fields of state.json needed to resume any training.

    smooth_loss_weight: of the smoothed loss (RunningMean); 1 in versions that did not correct its bias. ema: whether
    there are EMA weights; old versions don't say.
    """

    step: _Count
    epoch: _Count
    step_in_epoch: _Count
    smooth_loss: float | None
    smooth_loss_weight: Annotated[float, Field(ge=0, le=1)] = 1.0
    optimizer: _Optimizer
    loss_scale: dict[str, float]
    ema: bool = False


class _RunState(_LoopState):
    """The fields needed to resume a run of the diffusion trainer."""

    learning_rate_factor: Annotated[float, Field(gt=0)]
    run: _Run


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}")


def _first_problem(error: ValidationError) -> str:
    """The first validation error in words, such as "has no epoch" or "has an impossible step: -5"."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"has no {place}"
    return f"has an impossible {place}: {first['input']!r:.60}" if place else "is not a JSON object"


def _move(source: Path, target: Path) -> None:
    if target.exists():  # a backup of the same step, set aside the last time the run went back
        remove_folder(target)
    rename(source, target)


def _look_at(path: Path, match: re.Match) -> BackupInfo | None:
    try:
        if path.is_symlink() and not path.exists():  # links to a backup that was saved elsewhere and is gone
            return BackupInfo(path, int(match[2]), path.lstat().st_mtime, 0, match[1] is not None)
        if not path.is_dir():
            return None
        complete = path / MANIFEST_NAME
        time = (complete if complete.exists() else path).stat().st_mtime
        num_bytes = sum(entry.stat().st_size for entry in os.scandir(path) if entry.is_file())
    except OSError:  # just removed, as old backups are
        return None
    return BackupInfo(path, int(match[2]), time, num_bytes, match[1] is not None)
