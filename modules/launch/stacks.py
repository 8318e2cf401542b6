"""The stack traces of hung ranks: dumped on request, requested and awaited."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.own_file import open_own
from modules.launch.RankWatch import LOOK_SECONDS, Failure

if TYPE_CHECKING:
    from modules.launch.lifeline import RankState
    from modules.session.RunFolder import RunFolder

STACKS_SECONDS = 1.5  # for the ranks to write them; a suspended one never does


def dump_stacks_on_request(path: str | os.PathLike) -> None:
    """From now on, SIGQUIT appends the stacks of all threads to the file at `path`, even inside a collective.

    Does nothing on Windows, which has no such signal.
    """
    if hasattr(signal, "SIGQUIT"):
        file = open_own(path, "a", encoding="utf-8")  # faulthandler needs it until the process ends
        faulthandler.register(signal.SIGQUIT, file=file, all_threads=True, chain=False)


def with_stacks(failure: Failure, folder: RunFolder, ranks: Iterable[RankState]) -> Failure:
    """`failure` of a hung rank, extended by where its stacks are, if it has written them.

    All of `ranks` are asked to write theirs, because those of the others show what they wait for; a rank that has not
    called `dump_stacks_on_request` is ended by the signal. Does nothing on Windows, which has no such signal.
    """
    if not hasattr(signal, "SIGQUIT"):
        return failure
    paths = {state.pid: folder.stacks_path(state.rank) for state in ranks if state.is_connected}
    before = {path: _size(path) for path in paths.values()}
    for pid in paths:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGQUIT)
    deadline = time.monotonic() + STACKS_SECONDS
    sizes, whole = before, False
    while not whole and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        last, sizes = sizes, {path: _size(path) for path in before}
        # threads are written one by one: a file is complete once it has stopped growing
        whole = sizes == last and all(sizes[path] > before[path] for path in sizes)
    own = folder.stacks_path(failure.rank)
    if sizes.get(own, 0) == before.get(own, 0):
        return failure
    place = own.relative_to(folder.path).as_posix()
    return replace(failure, text=f"{failure.text.rstrip('.')}; its stacks are in {place}.")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
