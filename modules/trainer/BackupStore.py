"""Backups of a run: everything to go on exactly, as safetensors and JSON, written in the background."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modules.session.atomic import new_folder, remove_folder, write_json
from modules.session.manifest import check_manifest, write_manifest
from modules.trainer.TrainingError import TrainingError
from modules.weights.errors import WeightsError
from modules.weights.safe import load_tensors, save_tensors

MAX_FAILURES = 3


@dataclass(frozen=True)
class Backup:
    path: Path
    tensors: dict[str, dict[str, Tensor]]
    data: dict[str, Any]


class BackupStore:
    """The backups in `folder`, the newest `keep` of them.

    A backup appears whole (temporary folder, fsync, manifest with hashes, rename) or not at all. What can't be
    written is a warning and training goes on; after MAX_FAILURES in a row it is an error, for by then the run is worth
    more than its next steps.
    on_done(path, step) and on_warning(text) are called from the writing thread.
    """

    def __init__(
        self, folder: Path, keep: int, on_done: Callable[[Path, int], None], on_warning: Callable[[str], None]
    ):
        self.folder = folder
        self._keep = keep
        self._on_done = on_done
        self._on_warning = on_warning
        self._thread: threading.Thread | None = None
        self._failures = 0

    def write(self, tensors: dict[str, dict[str, Tensor]], data: dict[str, Any]) -> None:
        """Copies the tensors to the CPU now and writes them in the background.

        Raises TrainingError where the last backups have all failed.
        """
        self.wait()
        # JSON now, too: the plain data holds lists that training changes
        text = json.dumps(data, allow_nan=False)
        copies = {file: {name: _copy(tensor) for name, tensor in group.items()} for file, group in tensors.items()}
        self._thread = threading.Thread(target=self._write, args=(copies, json.loads(text)), name="backup")
        self._thread.start()

    def wait(self) -> None:
        """Until the last backup is on the disk. Raises TrainingError where the last ones have all failed."""
        self.close()
        if self._failures >= MAX_FAILURES:
            raise TrainingError(
                f"{MAX_FAILURES} backups in a row could not be written to {self.folder}: free some space there, then "
                "resume from the last good one."
            )

    def close(self) -> None:
        """Until the last backup is on the disk or has failed; for a run that ends with an error of its own."""
        if self._thread:
            self._thread.join()
            self._thread = None

    @property
    def has_failed(self) -> bool:
        """Whether the last backup could not be written; to be asked after `wait`."""
        return self._failures > 0

    def newest(self) -> Backup | None:
        """The newest backup that is whole; damaged ones are passed over with a warning."""
        for path in self.paths():
            problem = check_manifest(path)
            if problem is None:
                try:
                    return _load(path)
                except (OSError, ValueError, WeightsError) as error:
                    problem = str(error)
            self._on_warning(f"The backup {path.name} is damaged ({problem}); the one before it is used.")
        return None

    def load(self, name: str) -> Backup | None:
        """The backup of that name, which another rank has found to be whole; None where it can't be read here."""
        try:
            return _load(self.folder / name)
        except (OSError, ValueError, WeightsError):
            return None

    def paths(self) -> list[Path]:
        """Newest first."""
        return sorted((path for path in self.folder.glob("step-*") if path.name[5:].isdigit()), reverse=True)

    def _write(self, tensors: dict[str, dict[str, Tensor]], data: dict[str, Any]) -> None:
        path = self.folder / f"step-{data['step']:09d}"
        try:
            if path.exists() and check_manifest(path) is None:  # asked for twice at one step; equal in content
                self._on_done(path, data["step"])
                return
            remove_folder(path)
            with new_folder(path) as temporary:
                for name, group in tensors.items():
                    save_tensors(temporary / f"{name}.safetensors", group)
                write_json(temporary / "state.json", data)
                write_manifest(temporary)
        except OSError as error:
            self._failures += 1
            self._on_warning(f"The backup at step {data['step']} could not be written ({error.strerror or error}).")
            return
        self._failures = 0
        # newer ones are damaged leftovers that a resume has passed over: they must not push this one out
        older = [old for old in self.paths() if old.name < path.name]
        for old in older[self._keep - 1 :]:
            with contextlib.suppress(OSError):  # still open on Windows: the next backup tries again
                remove_folder(old)
        self._on_done(path, data["step"])


def _copy(tensor: Tensor) -> Tensor:
    # contiguous, so that the writer needs no second copy of channels-last weights
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())


def _load(path: Path) -> Backup:
    tensors = {file.stem: load_tensors(file) for file in path.glob("*.safetensors")}
    return Backup(path, tensors, json.loads((path / "state.json").read_text(encoding="utf-8")))
