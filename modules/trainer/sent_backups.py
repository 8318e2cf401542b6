"""Sends a backup from rank 0's disk to the machines that don't share it, so that all ranks can resume from it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.atomic_file import remove, temporary_beside
from modules.session.manifest import MANIFEST_NAME, listed_files

if TYPE_CHECKING:
    from modules.distributed.Runtime import Runtime

CHUNK_BYTES = 16 << 20
_WHY = "sending the backup"


@contextlib.contextmanager
def sent_backup(runtime: Runtime, folder: Path, name: str, wanted: bool) -> Iterator[tuple[Path, str]]:
    """Where this rank finds a copy of the backup `name` of rank 0's `folder`, and why it is incomplete, if it is.

    All ranks must call it. A machine gets a copy below the same `folder` on its own disk if its first rank has the
    backup `wanted`. It is removed when the block has ended on all ranks.
    """
    copy = folder / runtime.broadcast(temporary_beside(Path(name)).name, _WHY)
    receives = wanted and runtime.local_rank == 0
    try:
        problem = _make_folder(copy) if receives else ""
        with runtime.heartbeat.phase("loading"):
            for file, num_bytes in runtime.broadcast(_sizes(folder / name) if runtime.is_main else [], _WHY):
                source = folder / name / file if runtime.is_main else None
                target = copy / Path(file).name if receives and not problem else None
                problem = _send(runtime, source, target, num_bytes) or problem
        runtime.barrier(_WHY)
        yield copy, problem
        runtime.barrier(_WHY)  # the others of this machine read it, too
    finally:
        if receives:
            remove(copy)  # what was mapped from it stays readable


def _sizes(path: Path) -> list[tuple[str, int]]:
    return [(name, (path / name).stat().st_size) for name in [*listed_files(path), MANIFEST_NAME]]


def _make_folder(path: Path) -> str:
    try:
        path.mkdir(parents=True)
    except OSError as error:
        return _why_not_written(error)
    return ""


def _send(runtime: Runtime, source: Path | None, target: Path | None, num_bytes: int) -> str:
    """Sends one file. source: on rank 0. target: where this rank writes it, if it does. Returns why it can't."""
    problem = ""
    with contextlib.ExitStack() as stack:
        reading = stack.enter_context(source.open("rb")) if source else None
        for start in range(0, num_bytes, CHUNK_BYTES):
            size = min(CHUNK_BYTES, num_bytes - start)
            chunk = runtime.broadcast_bytes(reading.read(size) if reading else b"", size)
            runtime.heartbeat.beat()
            if target is None or problem:  # this rank goes on receiving, as the others do
                continue
            try:
                with target.open("ab") as file:
                    file.write(chunk)
            except OSError as error:
                problem = _why_not_written(error)
    return problem


def _why_not_written(error: OSError) -> str:
    return f"a copy of rank 0's can't be written: {error.strerror}"
