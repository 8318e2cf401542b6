"""The backups in a run folder: which there are, whether they are whole, and which one a resume goes on from."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from modules.config.errors import UserError
from modules.session.atomic import remove_folder
from modules.session.manifest import MANIFEST_NAME, check_manifest
from modules.session.RunFolder import RunFolder

_NAME = re.compile(r"(aside-)?step-(\d{1,18})")


@dataclass(frozen=True)
class BackupInfo:
    """A backup. time: when it was complete, Unix seconds. num_bytes: of its files.

    is_aside: it is later than one that the run was sent back to, and is not resumed from.
    """

    path: Path
    step: int
    time: float
    num_bytes: int
    is_aside: bool


def list_backups(folder: RunFolder) -> list[BackupInfo]:
    """The backups of the run, the latest step first."""
    try:
        names = os.listdir(folder.backup_dir)
    except OSError:
        return []
    found = [
        info
        for name in names
        if (match := _NAME.fullmatch(name)) and (info := _look_at(folder.backup_dir / name, match)) is not None
    ]
    return sorted(found, key=lambda info: (-info.step, info.is_aside))


def damage(info: BackupInfo) -> str | None:
    """What is wrong with the backup, in words; None if every byte is as written. Reads all of it."""
    return check_manifest(info.path)


def go_back_to(folder: RunFolder, step: int) -> None:
    """Makes the backup of `step` the latest: a resume goes on from it. Later ones are put aside, not deleted.

    Raises UserError if it is not there, or is damaged.
    """
    found = list_backups(folder)
    chosen = next((info for info in found if info.step == step), None)
    if chosen is None:
        raise UserError(f"There is no backup of step {step} in {folder.backup_dir} any more: choose another one.")
    problem = damage(chosen)
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
            f"The backups in {folder.backup_dir} can't be renamed ({error.strerror}): look after its disk."
        ) from error


def _move(source: Path, target: Path) -> None:
    if target.exists():  # of the same step, from before the run was sent back the last time
        remove_folder(target)
    source.rename(target)


def _look_at(path: Path, match: re.Match) -> BackupInfo | None:
    try:
        if not path.is_dir():
            return None
        complete = path / MANIFEST_NAME
        time = (complete if complete.exists() else path).stat().st_mtime
        num_bytes = sum(entry.stat().st_size for entry in os.scandir(path) if entry.is_file())
    except OSError:  # removed at this moment, as older ones are
        return None
    return BackupInfo(path, int(match[2]), time, num_bytes, match[1] is not None)
