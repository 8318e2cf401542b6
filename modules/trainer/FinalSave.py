"""Something that a run leaves at its end: its model, or its last backup."""

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

Written = tuple[list[Path], OSError | WeightsError | None]  # what is complete, and what kept it from being all


@dataclass(eq=False)
class FinalSave:
    """What is saved, and what has come of it.

    name: for people, such as "model". home: the folder that it belongs in. num_bytes: about what it takes there.
    write: writes it into a folder. tell: is called with every file or folder that is complete.
    fails_run: whether a run that can't save it anywhere has failed. is_resumed_from: whether a resume looks for it in
    `home`, so that it is linked there from elsewhere.
    error: why it is not in `home`; None once it is. part: what is complete there nevertheless. place: the folder where
    it is instead, with `elsewhere` in it; None if it is nowhere. problems: why it is nowhere.
    """

    name: str
    home: Path
    num_bytes: int
    write: Callable[[Path], Written]
    tell: Callable[[Path], None]
    fails_run: bool = True
    is_resumed_from: bool = False
    error: OSError | None = None
    part: list[Path] = field(default_factory=list)
    place: Path | None = None
    elsewhere: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    next_try: float = 0.0  # of time.monotonic

    @property
    def missing_bytes(self) -> int:
        """How much room `home` lacks, as far as that can be told; 0 where only another attempt can tell."""
        return max(0, self.num_bytes - self._free_bytes())

    @property
    def obstacle(self) -> str:
        """What keeps it from `home`, such as "No space left on device"."""
        return self.error.strerror or str(self.error)

    @property
    def lack(self) -> str:
        """The same with the room that it needs and has."""
        if self.error.errno not in NO_ROOM:
            return self.obstacle
        free = spoken_bytes(self._free_bytes())
        return f"{self.obstacle}; it needs about {spoken_bytes(self.num_bytes)}, with {free} free"

    def _free_bytes(self) -> float:
        try:
            return shutil.disk_usage(self.home).free + total_bytes(self.part)
        except OSError:  # the disk is gone
            return math.inf

    def link(self) -> None:
        """Makes a resume find in `home` what is elsewhere; where no link can be made, it stays as it is."""
        for path in self.elsewhere if self.is_resumed_from else ():
            try:
                os.symlink(path, self.home / path.name, target_is_directory=True)
            except OSError:  # there is one, the disk is read-only or gone, or Windows grants no right to it
                continue

    @property
    def where(self) -> Path:
        """The path of what is elsewhere; its folder, if it is several files."""
        return self.elsewhere[0] if len(self.elsewhere) == 1 else self.place

    @property
    def is_linked(self) -> bool:
        return bool(self.elsewhere) and all((self.home / path.name).is_symlink() for path in self.elsewhere)


def total_bytes(paths: list[Path]) -> int:
    """Of the files, and those in the folders."""
    files = (file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())
    return sum(file.stat().st_size for file in files)
