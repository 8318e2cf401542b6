"""Ranks of one process that exchange nothing but what they post, for backups that all of them write."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from modules.distributed.Runtime import Runtime
from modules.trainer.BackupRanks import BackupRanks
from modules.trainer.BackupStore import BackupStore


class PostingRuntime(Runtime):
    """Rank `rank` of `world_size`. board: what the ranks have posted, by topic and rank, as JSON."""

    def __init__(self, rank: int, world_size: int, board: dict[tuple[str, int], str]):
        super().__init__(torch.device("cpu"))
        self.rank, self.world_size = rank, world_size
        self._board = board

    def post(self, topic: str, value: Any) -> None:
        self._board[topic, self.rank] = json.dumps(value)

    def posted(self, topic: str, rank: int) -> Any:
        return json.loads(self._board.get((topic, rank), "null"))

    def first_on_machine(self, topic: str) -> int:
        return int(self._board.setdefault((f"first/{topic}", 0), str(self.rank)))


def stores_of_ranks(
    folder: Path,
    count: int,
    warn: Callable[[str], None] = print,
    done: Callable[[Path, int], None] = lambda path, step: None,
    others: Sequence[Path] = (),
) -> list[BackupStore]:
    """The store of each rank for backups in `folder`; warn and done are called for rank 0's.

    others: where folders for backups may be made as well.
    """
    board: dict[tuple[str, int], str] = {}
    stores = []
    for rank in range(count):
        store = BackupStore(folder, 2, done, warn)
        places = [folder, *others]
        store.ranks = BackupRanks(PostingRuntime(rank, count, board), places) if count > 1 else None
        stores.append(store)
    return stores
