"""Backups of a run: everything needed to resume exactly, as safetensors and JSON, written in the background."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modules.distributed.shards import DividedRows, Saved
from modules.session.atomic import new_folder, remove_folder, write_json
from modules.session.backups import STATE_NAME, damage, find_backups, part_count, tensor_files
from modules.session.manifest import Entry, manifest_entry, write_manifest
from modules.trainer.BackupRanks import BackupRanks
from modules.trainer.FinalSave import FinalSave, Written
from modules.trainer.TrainingError import DamagedBackup, TrainingError
from modules.weights.errors import WeightsError
from modules.weights.safe import load_tensors, save_tensors

MAX_FAILURES = 3
MAX_NAMED = 3  # damaged backups that a message lists

# Loaded tensors are memory-mapped, and on the CPU the optimizer keeps using them. Windows neither deletes such a file
# nor renames its folder, so the backup that a run was resumed from could not be pruned.
_LOCKS_MAPPED_FILES = os.name == "nt"


@dataclass(frozen=True)
class Backup:
    path: Path
    tensors: dict[str, dict[str, Saved]]
    data: dict[str, Any]


class BackupStore:
    """The backups in `folder`, the newest `keep` of them.

    Backups are written atomically (temporary folder, fsync, manifest with hashes, rename). If one can't be written,
    there is a warning and training continues; MAX_FAILURES failures in a row are an error, because continuing would put
    too much work at risk.
    on_done(path, step) and on_warning(text) are called from the writing thread.
    ranks: if each rank has a part of what is saved. All ranks then call `write`, `final_save` and `release`, each with
    its own tensors, and rank 0 does the rest. None: only rank 0 writes.
    """

    ranks: BackupRanks | None = None

    def __init__(
        self, folder: Path, keep: int, on_done: Callable[[Path, int], None], on_warning: Callable[[str], None]
    ):
        self.folder = folder
        self._keep = keep
        self._on_done = on_done
        self._on_warning = on_warning
        self._thread: threading.Thread | None = None
        self._released = threading.Event()
        self._failures = 0
        self._damaged: set[str] = set()  # names of backups that a resume has found to be damaged
        self._told: Path | None = None  # the backup that `on_done` was last called with

    def write(self, tensors: dict[str, dict[str, Tensor]], data: dict[str, Any]) -> None:
        """Copies the tensors to the CPU immediately and writes them in the background.

        Raises TrainingError if the last MAX_FAILURES backups have failed.
        """
        self.wait()
        # serialized immediately, too: training changes lists in the plain data
        text = json.dumps(data, allow_nan=False)
        copies = {file: {name: _copy(tensor) for name, tensor in group.items()} for file, group in tensors.items()}
        if self._serves:
            self._serve(copies)
        else:
            self._thread = threading.Thread(target=self._write, args=(copies, json.loads(text)), name="backup")
            self._thread.start()

    def wait(self) -> None:
        """Waits for the last backup. Raises TrainingError if the last MAX_FAILURES backups have failed."""
        self.close()
        if self._failures >= MAX_FAILURES:
            raise TrainingError(f"{MAX_FAILURES} backups in a row could not be written to {self.folder}.")

    def close(self) -> None:
        """Waits for the last backup without raising; for a run that ends with another error."""
        if self._thread:
            self._thread.join()
            self._thread = None

    def final_save(self, tensors: dict[str, dict[str, Tensor]], data: dict[str, Any], fails_run: bool) -> FinalSave:
        """The final backup of a run, which may be saved to a fallback folder. The tensors must not change meanwhile.

        On other ranks than 0 it is not to be written: they write their parts when rank 0 does, until `release`.
        """
        if self._serves:
            self.close()
            self._serve(tensors)
        num_bytes = sum(
            part_count(file) * tensor.nbytes for file, group in tensors.items() for tensor in group.values()
        )
        return FinalSave(
            f"backup of step {data['step']}",
            self.folder,
            num_bytes,
            write=partial(self._attempt, tensors, data),
            tell=lambda path: self._tell_final(path, data["step"]),
            fails_run=fails_run,
            is_resumed_from=True,
        )

    def release(self) -> None:
        """Ends what `final_save` has started on other ranks than 0."""
        self._released.set()
        self.close()

    @property
    def _serves(self) -> bool:
        return self.ranks is not None and not self.ranks.is_main

    def _serve(self, tensors: dict[str, dict[str, Tensor]]) -> None:
        assert self.ranks is not None
        self._released.clear()
        arguments = (partial(_write_tensors, tensors=tensors), self._released)
        # a daemon, because it would wait for ever for a rank 0 that has failed
        self._thread = threading.Thread(target=self.ranks.serve, args=arguments, name="backup", daemon=True)
        self._thread.start()

    def newest(self) -> Backup | None:
        """The newest good backup; damaged ones are skipped with a warning. None if there is no backup.

        Raises TrainingError if all backups are damaged.
        """
        skipped: list[str] = []
        for path in self.paths():
            try:
                backup = self.load(path.name)
            except DamagedBackup as error:
                skipped.append(f"{path.name} is damaged ({error})")
                self._damaged.add(path.name)
                continue
            for text in skipped:
                self._on_warning(f"The backup {text}; {path.name} is used.")
            return backup
        if skipped:
            named = ", ".join(skipped[:MAX_NAMED])
            more = f" and {len(skipped) - MAX_NAMED} more" if len(skipped) > MAX_NAMED else ""
            raise TrainingError(
                f"None of the backups in {self.folder} can be resumed from: {named}{more}; restore the files of one of "
                "them, or start a new run in another folder."
            )
        return None

    def load(self, name: str) -> Backup:
        """The backup of that name. Raises DamagedBackup."""
        path = self.folder / name
        problem = damage(path)
        if problem is not None:
            raise DamagedBackup(problem)
        try:
            return _load(path)
        except (OSError, ValueError, WeightsError) as error:
            raise DamagedBackup(str(error).rstrip(".")) from error

    def paths(self) -> list[Path]:
        """Newest first, without those put aside. Raises TrainingError if the folder can't be read."""
        try:
            return [info.path for info in find_backups(self.folder) if not info.is_aside]
        except OSError as error:
            raise TrainingError(
                f"The backups in {self.folder} can't be read ({error.strerror}): check its disk, then resume."
            ) from error

    def _write(self, tensors: dict[str, dict[str, Tensor]], data: dict[str, Any]) -> None:
        paths, error = self._attempt(tensors, data, self.folder)
        for path in paths:
            self._told = path
            self._on_done(path, data["step"])
        if error is not None:
            self._failures += 1
            reason = error.strerror if isinstance(error, OSError) else None
            self._on_warning(f"The backup at step {data['step']} could not be written ({reason or error}).")
        if self.ranks is not None:
            self.ranks.finish()

    def _tell_final(self, path: Path, step: int) -> None:
        """Only if it is another one than the last: a step that has a backup already gets no second one."""
        if path != self._told:
            self._told = path
            self._on_done(path, step)

    def _attempt(self, tensors: dict[str, dict[str, Tensor]], data: dict[str, Any], folder: Path) -> Written:
        """Writes a backup into `folder`."""
        path = folder / f"step-{data['step']:09d}"
        try:
            # A backup of this step may exist already, with equal content. A link leads to one in a fallback folder.
            if path.is_symlink() or not path.exists() or damage(path) is not None:
                remove_folder(path)
                write_part = partial(_write_tensors, tensors=tensors)
                with new_folder(path) as temporary:
                    files = self.ranks.write(temporary, write_part) if self.ranks else write_part(temporary)
                    write_json(temporary / STATE_NAME, data)
                    write_manifest(temporary, files)
        except OSError as error:
            return [], error
        if folder == self.folder:
            self._failures = 0
            self._damaged.discard(path.name)
            self._remove_old(data["step"])
        return [path], None

    def _remove_old(self, step: int) -> None:
        """Keeps the backup of `step`, which was just written, and the good ones before it, `keep` in total.

        Damaged backups don't count, nor do later ones that a resume has skipped.
        """
        kept = 1
        with contextlib.suppress(OSError):
            older = [info.path for info in find_backups(self.folder) if info.step < step and not info.is_aside]
            for path in older:
                if kept >= self._keep:
                    remove_folder(path)  # if it is still open on Windows, it stays until the next backup
                elif path.name not in self._damaged and damage(path, contents=False) is None:
                    kept += 1


def _copy(tensor: Tensor) -> Tensor:
    # contiguous, so that the writer need not copy channels-last weights again
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())


def _write_tensors(folder: Path, tensors: dict[str, dict[str, Tensor]]) -> dict[str, Entry]:
    """Writes the files of this rank; returns their entries in the manifest."""
    entries = {}
    for name, group in tensors.items():
        path = folder / f"{name}.safetensors"
        save_tensors(path, group)
        entries[path.name] = manifest_entry(path)
    return entries


def _load(path: Path) -> Backup:
    files = {kind: [_load_file(path / name) for name in names] for kind, names in tensor_files(path).items()}
    tensors = {kind: _joined(parts) for kind, parts in files.items()}
    return Backup(path, tensors, json.loads((path / STATE_NAME).read_text(encoding="utf-8")))


def _load_file(path: Path) -> dict[str, Tensor]:
    tensors = load_tensors(path)
    return {name: tensor.clone() for name, tensor in tensors.items()} if _LOCKS_MAPPED_FILES else tensors


def _joined(parts: list[dict[str, Tensor]]) -> dict[str, Saved]:
    """The tensors of files that each may have some rows of them, without reading the rows."""
    found: dict[str, list[Tensor]] = {}
    for part in parts:
        for name, tensor in part.items():
            found.setdefault(name, []).append(tensor)
    return {name: rows[0] if len(rows) == 1 else DividedRows(rows) for name, rows in found.items()}
