"""Records kept in memory up to a number of bytes, so that small data sets are read from disk once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_BYTES = 512 * 2**20


class BoundedMemory:
    """Name -> record (name -> tensor). What no longer fits is not kept; nothing is evicted, since every epoch comes by
    every sample and any eviction rule would only trade one miss for another."""

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
