"""Keeps records in memory up to a size limit, so that small datasets are read from disk only once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_BYTES = 512 * 2**20


class BoundedMemory:
    """A map from key to record (name -> tensor) that stops growing at `max_bytes`.

    Nothing is evicted: every epoch visits every sample, so evicting a record only trades one miss for another.
    """

    def __init__(self, max_bytes: int = DEFAULT_BYTES):
        self._left = max_bytes
        self._records: dict[str, dict[str, Tensor]] = {}

    def get(self, key: str) -> dict[str, Tensor] | None:
        return self._records.get(key)

    def keep(self, key: str, record: dict[str, Tensor]) -> None:
        size = sum(tensor.nbytes for tensor in record.values())
        if key not in self._records and size <= self._left:
            self._left -= size
            self._records[key] = record
