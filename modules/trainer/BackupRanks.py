"""Lets every rank write its part of a backup into the folder that rank 0 has chosen, whenever that happens.

Rank 0 may write in the background, and at the end of a run tries several folders until one takes the backup. So it
posts requests, which a thread of each other rank answers; no collective is involved.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from modules.distributed.Heartbeat import PHASE_LIMITS

if TYPE_CHECKING:
    from modules.distributed.Runtime import Runtime
    from modules.session.manifest import Entry

WritePart = Callable[[Path], dict[str, "Entry"]]
"""Writes the tensors of this rank into a folder; returns the manifest entries of their files. May raise OSError."""

TOPIC = "backup"
FIRST_POLL_SECONDS, SLOWEST_POLL_SECONDS = 0.01, 0.5


class BackupRanks:
    """The ranks that each hold a part of what a backup saves. Their folder must be the same on all of them."""

    def __init__(self, runtime: Runtime):
        self._runtime = runtime
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
                if request is None or request[0] == self._number:
                    continue
                self._number, folder = request
                self._runtime.post(TOPIC, [self._number, *_answer(folder, write_part)])
            except RuntimeError:  # torch's DistError: the store is gone with rank 0
                return
            if folder is None:
                return
            pause = FIRST_POLL_SECONDS

    def _request(self, folder: Path | None) -> None:
        self._number += 1
        self._runtime.post(TOPIC, [self._number, None if folder is None else os.fspath(folder)])

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


def _answer(folder: str | None, write_part: WritePart) -> tuple[dict[str, Entry], list | None]:
    if folder is None:
        return {}, None
    try:
        if not os.path.isdir(folder):  # writing would create it
            raise FileNotFoundError(errno.ENOENT, f"{folder} is not a folder that all machines share")
        return write_part(Path(folder)), None
    except OSError as error:
        return {}, [error.errno or errno.EIO, error.strerror or str(error)]
