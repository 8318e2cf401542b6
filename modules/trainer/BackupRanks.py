"""Lets every rank write its part of a backup into the folder that rank 0 has chosen, whenever that happens.

Rank 0 may write in the background, and at the end of a run tries several folders until one takes the backup. So it
posts requests, which a thread of each other rank answers; no collective is involved. A request does not contain a path:
it names one of the places that each rank knows from its own settings, and a temporary folder in it.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.distributed.Heartbeat import PHASE_LIMITS
from modules.session.atomic import is_temporary

if TYPE_CHECKING:
    from modules.distributed.Runtime import Runtime
    from modules.session.manifest import Entry

WritePart = Callable[[Path], dict[str, "Entry"]]
"""Writes the tensors of this rank into a folder; returns the manifest entries of their files. May raise OSError."""

TOPIC = "backup"
FIRST_POLL_SECONDS, SLOWEST_POLL_SECONDS = 0.01, 0.5

_PLAIN_NAME = re.compile(r"[^/\\:\0]{1,255}")
_NOT_SHARED = "its folder is not one that all machines share"


class BackupRanks:
    """The ranks that each hold a part of what a backup saves.

    places: the folders in which backups are written or, if no backup fits into the first one, in which folders for them
    are made; in the same order on all ranks. They must be the same folders on all ranks.
    """

    def __init__(self, runtime: Runtime, places: Sequence[Path]):
        self._runtime = runtime
        self._places = list(places)
        self._number = 0  # of the last request

    @property
    def is_main(self) -> bool:
        """Whether this rank requests; the others `serve`."""
        return self._runtime.is_main

    def write(self, folder: Path, write_part: WritePart) -> dict[str, Entry]:
        """Has each rank write its part into `folder`, and waits for all. Raises OSError if one of them can't."""
        self._request(folder)
        try:
            files = write_part(folder)
        finally:  # the folder may be removed only when the others have finished with it
            answers = self._answers()
        for found, problem in answers:
            if problem:
                raise OSError(*problem)
            files |= found
        return files

    def finish(self) -> None:
        """Ends `serve` on all other ranks."""
        self._request(None)
        self._answers()

    def serve(self, write_part: WritePart, is_released: threading.Event) -> None:
        """Answers rank 0's requests until it calls `finish` or the event is set."""
        pause = FIRST_POLL_SECONDS
        while not is_released.wait(pause):
            pause = min(2 * pause, SLOWEST_POLL_SECONDS)
            try:
                request = self._runtime.posted(TOPIC, 0)
                if request is None or request[0] <= self._number:
                    continue
                self._number, where = request
                self._runtime.post(TOPIC, [self._number, *self._answer(where, write_part)])
            except RuntimeError:  # torch's DistError: the store is gone with rank 0
                return
            if where is None:
                return
            pause = FIRST_POLL_SECONDS

    def _request(self, folder: Path | None) -> None:
        self._number += 1
        self._runtime.post(TOPIC, [self._number, None if folder is None else self._where(folder)])

    def _where(self, folder: Path) -> list[Any]:
        """The number of a place, and the names of the folders that lead from there to `folder`."""
        # the innermost one: the run folder may be in the temporary folder, and a fallback folder in the run folder
        around = [number for number, place in enumerate(self._places) if folder.is_relative_to(place)]
        number = max(around, key=lambda number: len(self._places[number].parts))
        return [number, list(folder.relative_to(self._places[number]).parts)]

    def _folder(self, where: Any) -> Path:
        """The folder of a request. Raises FileNotFoundError unless it is one in which a backup is being written."""
        number, names = where
        plain = all(_PLAIN_NAME.fullmatch(name) and name.strip(". ") for name in names)
        if not plain or len(names) > 2 or not is_temporary(names[-1]) or not 0 <= number < len(self._places):
            raise FileNotFoundError(errno.ENOENT, _NOT_SHARED)
        folder = self._places[number]
        for name in names:  # writing would create them
            if not _is_own_folder(folder, name):
                raise FileNotFoundError(errno.ENOENT, _NOT_SHARED)
            folder /= name
        return folder

    def _answer(self, where: Any, write_part: WritePart) -> tuple[dict[str, Entry], list | None]:
        if where is None:
            return {}, None
        try:
            return write_part(self._folder(where)), None
        except OSError as error:
            return {}, [error.errno or errno.EIO, error.strerror or type(error).__name__]

    def _answers(self) -> list[tuple[dict[str, Entry], list | None]]:
        """Of each other rank, the entries of its files, and why it could not write them as (errno, text)."""
        deadline = time.monotonic() + PHASE_LIMITS["saving"]
        found = []
        for rank in range(1, self._runtime.world_size):
            pause = FIRST_POLL_SECONDS
            while (answer := self._runtime.posted(TOPIC, rank)) is None or answer[0] != self._number:
                if time.monotonic() > deadline:
                    raise TimeoutError(errno.ETIMEDOUT, f"rank {rank} does not finish its part")
                time.sleep(pause)
                pause = min(2 * pause, SLOWEST_POLL_SECONDS)
            found.append((answer[1], answer[2]))
        return found


def _is_own_folder(parent: Path, name: str) -> bool:
    """Whether `parent` has a folder `name` that is no link and, where anyone may create folders, is this user's."""
    try:
        anyone_writes = os.stat(parent).st_mode & stat.S_ISVTX
        found = os.lstat(parent / name)
    except OSError:
        return False
    is_own = os.name == "nt" or not anyone_writes or found.st_uid == os.geteuid()
    return stat.S_ISDIR(found.st_mode) and is_own
