"""Agrees on the backup to resume from, which all ranks must be able to read."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from modules.trainer.sent_backups import sent_backup
from modules.trainer.TrainingError import DamagedBackup, TrainingError

if TYPE_CHECKING:
    from torch import Tensor

    from modules.distributed.Runtime import Runtime
    from modules.distributed.shards import Saved
    from modules.trainer.BackupStore import Backup, BackupStore


def newest_backup(backups: BackupStore, runtime: Runtime) -> Backup | None:
    """The newest good backup that rank 0 finds, loaded on every rank; None if there is no backup.

    Raises TrainingError, on all ranks, if all backups are damaged or if any rank can't read this one.
    """
    return agreed_backup(backups, runtime, backups.newest)


def agreed_backup(backups: BackupStore, runtime: Runtime, find: Callable[[], Backup | None]) -> Backup | None:
    """The backup that `find` gives on rank 0, one of `backups`, loaded on every rank; None if it finds none.

    A machine on whose disk it isn't gets it from rank 0.
    Raises TrainingError, on all ranks, if `find` does on rank 0 or if any rank can't read the backup.
    """
    backup, refusal, own = None, "", None
    if runtime.is_main:
        try:
            backup = find()
        except TrainingError as error:
            own, refusal = error, _without_path(error, backups, "rank 0's backup folder")
    name, refused = runtime.broadcast([backup.path.name if backup else None, refusal], "looking for a backup")
    if refused:
        raise own or TrainingError(refused)
    if name is None:
        return None
    is_here = backup is not None or (backups.folder / name).exists()
    if runtime.num_nodes == 1 or all(runtime.gather(is_here, "looking for a backup")):
        return _read_on_all(backups, runtime, name, backup)
    with sent_backup(runtime, backups.folder, name, not is_here) as (copy, problem):
        backup = _read_on_all(backups, runtime, name, backup, "" if is_here else copy.name, problem)
    return replace(backup, path=backups.folder / name)


def _read_on_all(
    backups: BackupStore, runtime: Runtime, name: str, backup: Backup | None, copy: str = "", problem: str = ""
) -> Backup:
    """The backup of that name, unless this rank has read it already; from a `copy` of another name, if there is one.

    problem: why it can't be read. Raises TrainingError, on all ranks, if any of them has a problem.
    """
    if backup is None and not problem:
        try:
            backup = backups.load(copy or name)
        except DamagedBackup as error:
            problem = _without_path(error, backups, "the folder")
    problems = runtime.gather(problem, "reading")
    without = [rank for rank, text in enumerate(problems) if text]
    if without:
        raise TrainingError(
            f"Rank {without[0]} can't read the backup {name} in {backups.folder} ({problems[without[0]]}): check the "
            "disk; if it is one that the machines don't share, remove the backup from that machine, which then gets "
            "rank 0's."
        )
    assert backup is not None  # this rank has no problem either
    return backup


def _without_path(error: TrainingError | DamagedBackup, backups: BackupStore, words: str) -> str:
    """The message with `words` in place of the folder: what the ranks exchange contains no path."""
    return str(error).replace(str(backups.folder), words)


def check_resumed_batch(global_batch: int, num_ranks: int) -> None:
    """Raises TrainingError if the global batch of the backup can't be divided evenly among the ranks."""
    if global_batch % num_ranks == 0:
        return
    fitting = [str(number) for number in range(1, global_batch + 1) if global_batch % number == 0]
    wanted = " or ".join([", ".join(fitting[:-1]), fitting[-1]]) if fitting[1:] else fitting[0]
    raise TrainingError(
        f"The global batch of the backup is {global_batch}, which is not divisible by {num_ranks} GPUs: resume on "
        f"{wanted}."
    )


def check_same_parameters(own: Mapping[str, Tensor], trained: Set[str], saved: Mapping[str, Saved]) -> None:
    """Raises TrainingError if a backup has not the parameters that train, or other tensors than the model has.

    own: parameters and buffers by name. trained: names of those that train. saved: the backup's tensors.
    """
    missing = sorted(trained - saved.keys())
    foreign = sorted(name for name, value in saved.items() if name not in own or own[name].shape != value.shape)
    if not missing and not foreign:
        return
    example = (missing or foreign)[0]
    if pattern := "" if foreign else _pattern_of(missing, trained & saved.keys()):
        raise TrainingError(
            f"The backup has not {len(missing)} of the {len(trained)} parameters that these settings train, such as "
            f'{example}: add "{pattern}" to denoiser.exclude_layers to resume without them, or start a new run.'
        )
    raise TrainingError(
        f"The trainable parameters of the backup don't match these settings ({len(missing)} missing, "
        f"{len(foreign)} unexpected, such as {example}): resume with the settings of the original run."
    )


def _pattern_of(missing: Collection[str], others: Collection[str]) -> str:
    """A pattern that matches all missing parameters of layers and none of the others, of one word; "" without one.

    Backups of before a family learned more, such as sound, lack the layers for it, which the names of these tell.
    """
    if any(name.startswith("text_encoder") for name in missing):
        return ""  # whose layers other settings choose
    common = set.intersection(*(set(re.split(r"[._]", name)) for name in missing))
    telling = sorted(word for word in common if word.isalpha() and not any(word in name for name in others))
    return f"*{telling[0]}*" if telling and others else ""
