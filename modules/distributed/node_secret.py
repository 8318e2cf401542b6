"""A secret for those ranks of a machine that were started without a token, in a file that only they can read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.busy_files import retry_busy
from modules.distributed.errors import RanksError, not_joined, started_twice
from modules.session.run_token import TOKEN_VARIABLE, new_token, sign, write_secret

if TYPE_CHECKING:
    from modules.distributed.environments import RankEnvironment
    from modules.distributed.SignedStore import SignedStore

FILE_SECONDS = 15.0  # for a file that the store says is there: some shared disks show new files late
_POLL_SECONDS = 0.02
_MAX_BYTES = 4096
_JOINED = "joined"  # is in the store once all ranks of the machine have read the secret


@contextlib.contextmanager
def node_secret(store: SignedStore, environment: RankEnvironment, limit_seconds: float) -> Iterator[bytes]:
    """A new secret, the same on all ranks of this machine. Local rank 0 removes its file at the end of the block.

    store: shared by all ranks. It holds only a hash of the secret, by which a file of an earlier run is told apart. Who
    changes that keeps the ranks from starting, and learns nothing.
    Raises RanksError if local rank 0 does not come within `limit_seconds`, or if the ranks don't share the file.
    """
    path, key = _path(environment), f"node_secret/{environment.node_rank}"
    if environment.local_rank > 0:
        agreed = _agreed(store, key, environment, limit_seconds)
        yield _read(path, agreed, lambda: _check_in_time(store, key, environment))
        return
    own = new_token()
    agreed = store.agree(key, _hash(own.encode()))
    if agreed != _hash(own.encode()):
        raise started_twice(environment.rank)
    try:
        _write(path, own)
        yield own.encode()
        store.agree(f"{key}/{_JOINED}", True)
    finally:
        with contextlib.suppress(OSError):
            retry_busy(path.unlink)


def _path(environment: RankEnvironment) -> Path:
    """The same for all ranks of the machine, and for no other run that is starting."""
    run = [environment.master_addr, environment.master_port, environment.run_id, environment.node_rank]
    user = os.getuid() if hasattr(os, "getuid") else ""
    name = sign(b"", json.dumps([*run, user]).encode())[:16]
    try:
        return Path(tempfile.gettempdir(), f"chorus-ranks-{name}")
    except OSError as error:  # no folder for temporary files is writable
        raise RanksError(
            f"The ranks of this machine can't share a secret ({error.strerror}): set TMPDIR to a folder that is "
            f"writable, or set {TOKEN_VARIABLE} to the same secret for all ranks."
        ) from error


def _write(path: Path, secret: str) -> None:
    try:
        with contextlib.suppress(FileNotFoundError):
            retry_busy(path.unlink)  # of a start that was killed
        write_secret(path, secret)
    except OSError as error:
        raise RanksError(
            f"The ranks of this machine can't share a secret in {path} ({error.strerror}): free that path, or set "
            f"{TOKEN_VARIABLE} to the same secret for all ranks."
        ) from error


def _agreed(store: SignedStore, key: str, environment: RankEnvironment, limit_seconds: float) -> str:
    deadline = time.monotonic() + limit_seconds
    while (agreed := store.read(key)) is None:
        if time.monotonic() > deadline:
            leader = environment.rank - environment.local_rank
            raise not_joined([leader], environment.world_size, limit_seconds)
        time.sleep(_POLL_SECONDS)
    return agreed


def _check_in_time(store: SignedStore, key: str, environment: RankEnvironment) -> None:
    """Raises RanksError if all ranks have joined already: this one is then another of its number."""
    if store.read(f"{key}/{_JOINED}"):
        raise started_twice(environment.rank)


def _read(path: Path, agreed: str, check: Callable[[], None]) -> bytes:
    """check: raises if the file has gone for good."""
    deadline = time.monotonic() + FILE_SECONDS
    while True:
        with contextlib.suppress(OSError), open(path, "rb") as file:
            secret = file.read(_MAX_BYTES)
            if _hash(secret) == agreed:
                return secret
        check()
        if time.monotonic() > deadline:
            raise RanksError(
                f"The ranks of this machine don't all see {path}, by which they share a secret: give them the same "
                f"temporary folder (TMPDIR), or set {TOKEN_VARIABLE} to the same secret for all ranks."
            )
        time.sleep(_POLL_SECONDS)


def _hash(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()
