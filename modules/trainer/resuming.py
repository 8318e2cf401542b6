"""Agrees on the backup to resume from, which all ranks must be able to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.trainer.TrainingError import DamagedBackup, TrainingError

if TYPE_CHECKING:
    from modules.distributed.Runtime import Runtime
    from modules.trainer.BackupStore import Backup, BackupStore


def newest_backup(backups: BackupStore, runtime: Runtime, folder_setting: str = "workspace_dir") -> Backup | None:
    """The newest good backup that rank 0 finds, loaded on every rank; None if there is no backup.

    folder_setting: what the caller's user chooses the folder by, for the message.
    Raises TrainingError, on all ranks, if all backups are damaged or if any rank can't read this one.
    """
    backup, refusal, own = None, "", None
    if runtime.is_main:
        try:
            backup = backups.newest()
        except TrainingError as error:
            own, refusal = error, _without_path(error, backups, "rank 0's backup folder")
    name, refused = runtime.broadcast([backup.path.name if backup else None, refusal], "looking for a backup")
    if refused:
        raise own or TrainingError(refused)
    if name is None:
        return None
    problem = ""
    if backup is None:
        try:
            backup = backups.load(name)
        except DamagedBackup as error:
            problem = _without_path(error, backups, "the folder")
    problems = runtime.gather(problem, "reading")
    without = [rank for rank, text in enumerate(problems) if text]
    if without:
        raise TrainingError(
            f"Rank {without[0]} can't read the backup {name} in {backups.folder} ({problems[without[0]]}): copy the "
            f"folder to its machine, or choose {folder_setting} on a disk that all machines share."
        )
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
