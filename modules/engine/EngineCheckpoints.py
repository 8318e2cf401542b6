"""The checkpoints of TrainingEngine on disk: the last one and the best ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from modules.config.errors import UserError
from modules.distributed.Runtime import Runtime
from modules.distributed.shards import Saved, assign, is_sharded
from modules.engine.TopCheckpoints import Score, TopCheckpoints, best_first, scored
from modules.session.atomic import remove_folder, sweep_temporaries
from modules.session.backups import find_backups
from modules.trainer.BackupRanks import BackupRanks
from modules.trainer.BackupStore import Backup, BackupStore
from modules.trainer.rank_checks import is_shared
from modules.trainer.resuming import agreed_backup, newest_backup
from modules.trainer.TrainingError import DamagedBackup, TrainingError


class EngineCheckpoints:
    """The newest checkpoint in folder/checkpoints/last, the best one in best/, or several of the best in top/.

    Rank 0 writes them in the background, or all ranks their parts; every rank reads them. on_done(path, step) and
    on_warning(text) are called from the writing thread.
    """

    def __init__(
        self,
        folder: Path,
        runtime: Runtime,
        on_done: Callable[[Path, int], None],
        on_warning: Callable[[str], None],
    ):
        self._folder = folder
        self._runtime = runtime
        self._on_done = on_done
        self._on_warning = on_warning
        self._last, self._best = (self._store(folder / "checkpoints" / name) for name in ("last", "best"))
        self._top = TopCheckpoints(folder / "checkpoints" / "top", on_done, on_warning)
        self._has_saved = False
        self._went_back_to: int | None = None  # the step of the checkpoint that training continues from

    @property
    def last(self) -> Path | None:
        """The folder of the newest checkpoint."""
        return next(iter(self._last.paths()), None)

    @property
    def best(self) -> Path | None:
        """The folder of the best checkpoint."""
        kept = best_first(scored(self._best.folder) + self._top.all())
        return kept[0].path if kept else next(iter(self._best.paths()), None)

    @property
    def top(self) -> list[Path]:
        """The folders of all checkpoints that were saved for their figure, the best one first."""
        return [checkpoint.path for checkpoint in best_first(scored(self._best.folder) + self._top.all())]

    def divide(self) -> None:
        """From now on, each rank writes what it holds itself, if all of them share the folder. All must call it."""
        if self.are_in_parts:
            return
        if self._runtime.is_main:
            self._folder.mkdir(parents=True, exist_ok=True)
        if is_shared(self._runtime, self._folder):
            folders = [self._last.folder, self._best.folder, self._top.folder]
            # the same for all, because the requests to the ranks are numbered
            self._last.ranks = self._best.ranks = self._top.ranks = BackupRanks(self._runtime, folders)

    @property
    def are_in_parts(self) -> bool:
        """Whether what is saved is to be this rank's part."""
        return self._last.ranks is not None

    def save_last(self, state: dict[str, Any]) -> None:
        """Saves what `TrainingEngine.state_dict` returned. All ranks must call it."""
        self._save(self._last, state)

    def save_best(self, state: dict[str, Any], score: Score) -> None:
        """Saves the best one so far, in place of the one before. All ranks must call it."""
        self._save(self._best, score.added_to(state))

    def is_among_best(self, score: Score, keep: int) -> bool:
        """Whether a checkpoint of this score would be among the best `keep`. All ranks must call it."""
        own = self._runtime.is_main and self._top.takes(score, keep, self._went_back_to)
        return self._runtime.broadcast(own, "comparing checkpoints")

    def save_among_best(self, state: dict[str, Any], score: Score, at: str, keep: int) -> None:
        """Saves one of the best `keep`. at: the epoch or step, for its name. All ranks must call it."""
        if self._may_write():
            self._top.save(score.added_to(state), score, at, keep)

    def load(self, resume: bool | str | os.PathLike | None) -> Backup | None:
        """The checkpoint that the argument `resume` of `TrainingEngine.train` means; None if there is none.

        Raises UserError if it can't be read. All ranks must call it.
        """
        if resume is True or resume == "last":
            return newest_backup(self._last, self._runtime)
        if resume == "best":
            best = self.best if self._runtime.is_main else None
            parts = list(best.parent.relative_to(self._folder).parts) if best else ["checkpoints", "best"]
            parts = self._runtime.broadcast(parts, "looking for the best checkpoint")
            return newest_backup(self._store(self._folder.joinpath(*parts)), self._runtime)
        if not resume:
            return None
        path = Path(resume)
        store = self._store(path.parent)

        def find() -> Backup:
            try:
                return store.load(path.name)
            except DamagedBackup as error:
                raise TrainingError(
                    f"resume {str(path)!r}: it is not a complete checkpoint ({error}); use True, 'best' or the folder "
                    "of a checkpoint, such as engine.last_checkpoint."
                ) from error

        return agreed_backup(store, self._runtime, find)

    def start_fresh(self) -> None:
        """Removes the earlier checkpoints of this engine. Raises UserError on every rank if another's are there."""
        last, best = (store.paths() if self._runtime.is_main else [] for store in (self._last, self._best))
        best += [checkpoint.path for checkpoint in self._top.all()] if self._runtime.is_main else []
        resume = "" if self._has_saved else "True" if last else "'best'" if best else ""
        if resume := self._runtime.broadcast(resume, "looking for checkpoints"):
            raise UserError(
                f"{self._folder} holds checkpoints of an earlier training: pass resume={resume} to continue it, or "
                "another experiment_name."
            )
        for path in last + best:
            remove_folder(path)
        if self._runtime.is_main:
            remove_folder(self._top.folder)

    def go_back_to(self, step: int) -> None:
        """Tells that training continues from a checkpoint of `step`: the first save removes those of later steps."""
        self._went_back_to = step

    def close(self) -> None:
        """Waits until everything has been written."""
        self._last.close()
        self._best.close()
        self._top.close()

    def _save(self, store: BackupStore, state: dict[str, Any]) -> None:
        if self._may_write():
            store.folder.mkdir(parents=True, exist_ok=True)
            store.write(state["tensors"], state["data"])

    def _may_write(self) -> bool:
        """Whether this rank writes; then what others have left is removed."""
        is_first, self._has_saved = not self._has_saved, True
        if self._runtime.is_main:
            if is_first:
                sweep_temporaries(self._folder / "checkpoints")  # what a killed training was writing
            self._remove_later()
        if self.are_in_parts:
            self.close()  # the ranks write one checkpoint at a time
        return self._runtime.is_main or self.are_in_parts

    def _remove_later(self) -> None:
        if self._went_back_to is None:
            return
        for info in find_backups(self._last.folder) + find_backups(self._best.folder):
            if info.step > self._went_back_to:
                remove_folder(info.path)
        for checkpoint in self._top.all():
            if checkpoint.step > self._went_back_to:
                remove_folder(checkpoint.path.parent)
        self._went_back_to = None

    def _store(self, folder: Path) -> BackupStore:
        return BackupStore(folder, 1, self._on_done, self._on_warning)


def load_model(model: nn.Module, backup: Backup) -> None:
    """Loads the weights for inference. Raises UserError if they are another model's."""
    try:
        if any(map(is_sharded, model.parameters())):
            _load_parts(model, backup.tensors["model"])
        else:
            model.load_state_dict(backup.tensors["model"])
    except RuntimeError as error:
        raise UserError(f"The checkpoint belongs to another model: {str(error).splitlines()[-1].strip()}") from error


def _load_parts(model: nn.Module, saved: Mapping[str, Saved]) -> None:
    """Loads whole tensors into a model of which this rank has only some rows. Raises RuntimeError as torch does."""
    own = model.state_dict()
    for name, value in own.items():
        if name not in saved:
            raise RuntimeError(f"Missing key(s) in state_dict: {name!r}.")
        if isinstance(value, Tensor) and value.shape != saved[name].shape:
            raise RuntimeError(f"size mismatch for {name}: {tuple(saved[name].shape)} against {tuple(value.shape)}.")
    if foreign := sorted(saved.keys() - own.keys()):
        raise RuntimeError(f"Unexpected key(s) in state_dict: {foreign[0]!r}.")
    for name, value in own.items():
        if isinstance(value, Tensor):
            assign(value, saved[name])
