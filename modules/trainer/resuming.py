"""What a run takes over from its last backup, which all ranks must be able to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.trainer.TrainingError import TrainingError

if TYPE_CHECKING:
    from modules.distributed.Runtime import Runtime
    from modules.trainer.BackupStore import Backup, BackupStore


def newest_backup(backups: BackupStore, runtime: Runtime) -> Backup | None:
    """The backup that rank 0 finds to be the newest good one; None where there is none.

    Raises TrainingError, on all ranks, where one can't read it.
    """
    backup = backups.newest() if runtime.is_main else None
    name = runtime.broadcast(backup.path.name if backup else None, "looking for a backup")
    if name is None:
        return None
    backup = backup or backups.load(name)
    without = [rank for rank, has in enumerate(runtime.gather(backup is not None, "reading")) if not has]
    if without:
        raise TrainingError(
            f"Rank {without[0]} can't read the backup {name} in {backups.folder}: copy the folder to its machine, or "
            "use a workspace_dir that all machines share."
        )
    return backup


def check_divides(global_batch: int, num_ranks: int) -> None:
    """Raises TrainingError where the ranks can't share the batch that a run has from its backup."""
    if global_batch % num_ranks == 0:
        return
    fitting = [str(number) for number in range(1, global_batch + 1) if global_batch % number == 0]
    wanted = " or ".join([", ".join(fitting[:-1]), fitting[-1]]) if fitting[1:] else fitting[0]
    raise TrainingError(
        f"The run has {global_batch} samples per step, which {num_ranks} GPUs can't share evenly: resume on {wanted}."
    )
