"""Tensors on disk by content key, shared by all runs with the same `cache_dir`, on any number of ranks."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.atomic_file import rename
from modules.data.BoundedMemory import BoundedMemory
from modules.data.errors import DataError
from modules.session.atomic import is_temporary, sweep_temporaries

if TYPE_CHECKING:
    from torch import Tensor

SUFFIX = ".safetensors"


class TensorCache:
    """Records (name -> tensor) below `cache_dir/rank-*/kind/`. Each rank writes to its own folder and reads all.

    Entries are written atomically and carry a digest; a damaged entry counts as missing.
    """

    def __init__(self, cache_dir: str | os.PathLike, kind: str, rank: int):
        self._root = Path(cache_dir)
        self.kind = kind
        self._own = self._root / f"rank-{rank}" / kind
        self._paths: dict[str, Path] = {}
        self._memory = BoundedMemory()
        if self._own.exists():
            sweep_temporaries(self._own)
        self.refresh()

    def refresh(self) -> None:
        """Finds the entries that all ranks have written so far."""
        for folder in sorted(self._root.glob(f"rank-*/{self.kind}/*")):
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.endswith(SUFFIX) and not is_temporary(entry.path):
                        self._paths.setdefault(entry.name[: -len(SUFFIX)], Path(entry.path))

    def __contains__(self, key: str) -> bool:
        return key in self._paths

    def get(self, key: str) -> dict[str, Tensor] | None:
        """The record, or None if it is missing or damaged. A damaged entry is forgotten and then re-encoded."""
        record = self._memory.get(key)
        if record is not None or key not in self._paths:
            return record
        for path in self._copies(key):
            record = _read(path)
            if record is not None:
                self._paths[key] = path
                self._memory.keep(key, record)
                return record
        del self._paths[key]
        return None

    def put(self, key: str, record: dict[str, Tensor]) -> None:
        """Writes a record. Raises DataError if the disk is full or not writable."""
        from safetensors.torch import save

        record = {name: tensor.detach().cpu().contiguous() for name, tensor in record.items()}
        data = save(record, metadata={"sha256": _digest(save(record))})
        path = self._own / key[:2] / f"{key}{SUFFIX}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                _write(path, data)
            except FileNotFoundError:
                # A run that just started on another machine may have swept the temporary file as a leftover. It
                # sweeps only once.
                _write(path, data)
        except OSError as error:
            reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else error.strerror
            raise DataError.at(
                "cache_dir",
                f"{str(self._root)!r}: an entry of {len(data)} bytes can't be written ({reason}); free some "
                "space or choose another folder. Existing cache entries are kept.",
            ) from error
        self._paths[key] = path
        self._memory.keep(key, record)

    def _copies(self, key: str) -> Iterator[Path]:
        """The known path first, then copies that other ranks may have written to replace a damaged one."""
        yield self._paths[key]
        yield from sorted(self._root.glob(f"rank-*/{self.kind}/{key[:2]}/{key}{SUFFIX}"))


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        # no fsync, which would take longer than encoding: the digest detects what a power failure damages
        temporary.write_bytes(data)
        rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _read(path: Path) -> dict[str, Tensor] | None:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        data = path.read_bytes()
        header_bytes = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + header_bytes])
        if header.pop("__metadata__")["sha256"] != _tensor_digest(header, data[8 + header_bytes :]):
            return None
        return load(data)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        return None


def _digest(data: bytes) -> str:
    header_bytes = int.from_bytes(data[:8], "little")
    return _tensor_digest(json.loads(data[8 : 8 + header_bytes]), data[8 + header_bytes :])


def _tensor_digest(header: dict, tensor_bytes: bytes) -> str:
    """A digest of the tensors' names, dtypes, shapes and bytes."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    digest.update(tensor_bytes)
    return digest.hexdigest()
