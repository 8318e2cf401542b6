"""A file or folder written when a run ends: the final model or the final backup."""

from __future__ import annotations

import errno
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from modules.session.byte_sizes import spoken_bytes
from modules.weights.errors import WeightsError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

Written = tuple[list[Path], OSError | WeightsError | None]  # what is complete, and the error that prevented the rest


@dataclass(eq=False)
class FinalSave:
    """What to save, and the state of saving it.

    name: shown to users, such as "model". destination: the folder it belongs in. num_bytes: its approximate size.
    write: writes it into the given folder. tell: called with every completed file or folder.
    fails_run: whether the run fails if it can't be saved anywhere. is_resumed_from: whether a resume looks for it in
    `destination`; if so, a copy saved elsewhere is linked from there.
    error: why it is not in `destination`; None once it is. part: files that are complete there despite the error.
    fallback_folder: the folder it was saved to instead, as `fallback_paths`; None if it is not saved anywhere.
    problems: why no fallback folder could take it.
    """

    name: str
    destination: Path
    num_bytes: int
    write: Callable[[Path], Written]
    tell: Callable[[Path], None]
    fails_run: bool = True
    is_resumed_from: bool = False
    error: OSError | None = None
    part: list[Path] = field(default_factory=list)
    fallback_folder: Path | None = None
    fallback_paths: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    next_try: float = 0.0  # of time.monotonic

    @property
    def missing_bytes(self) -> int:
        """The free space missing at `destination`; 0 if enough seems free and only another attempt can tell."""
        return int(max(0, self.num_bytes - self._free_bytes()))

    @property
    def obstacle(self) -> str:
        """Why it could not be written to `destination`, such as "No space left on device"; "" if it could."""
        return "" if self.error is None else self.error.strerror or str(self.error)

    @property
    def explanation(self) -> str:
        """The obstacle; for a full disk with the space needed and the space free."""
        if self.error is None or self.error.errno not in NO_ROOM:
            return self.obstacle
        free = spoken_bytes(self._free_bytes())
        return f"{self.obstacle}; it needs about {spoken_bytes(self.num_bytes)}, with {free} free"

    def _free_bytes(self) -> float:
        try:
            return shutil.disk_usage(self.destination).free + total_bytes(self.part)
        except OSError:  # the disk is gone
            return math.inf

    def link(self) -> None:
        """Links the fallback copy from `destination` so that a resume finds it, where links are possible."""
        for path in self.fallback_paths if self.is_resumed_from else ():
            try:
                os.symlink(path, self.destination / path.name, target_is_directory=True)
            except OSError:  # it exists already, the disk is read-only or gone, or Windows denies the privilege
                continue

    @property
    def where(self) -> Path | None:
        """The path of the fallback copy, if there is one; its folder if it consists of several files."""
        return self.fallback_paths[0] if len(self.fallback_paths) == 1 else self.fallback_folder

    @property
    def is_linked(self) -> bool:
        return bool(self.fallback_paths) and all(
            (self.destination / path.name).is_symlink() for path in self.fallback_paths
        )


def total_bytes(paths: list[Path]) -> int:
    """Total size of files, and of all files inside folders."""
    files = (file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())
    return sum(file.stat().st_size for file in files)
