"""Simulates ranks as threads of one process. They can exchange plain data, but have no collectives."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from modules.distributed.Runtime import Runtime

T = TypeVar("T")


class ThreadRuntime(Runtime):
    """One of the ranks. `meetings`: the reasons of its exchanges, in order."""

    def __init__(self, ranks: ThreadRanks, rank: int, num_ranks: int, num_nodes: int):
        super().__init__(torch.device("cpu"))
        self.rank = rank
        self.world_size = num_ranks
        self.num_nodes = num_nodes
        self.local_world_size = num_ranks // num_nodes
        self.node_rank, self.local_rank = divmod(rank, self.local_world_size)
        self.meetings: list[str] = []
        self._ranks = ranks

    def gather(self, value: T, why: str) -> list[T]:
        self.meetings.append(why)
        return self._ranks.meet(self.rank, value, why)

    def broadcast(self, value: T, why: str) -> T:
        return self.gather(value, why)[0]

    def broadcast_bytes(self, data: bytes, num_bytes: int) -> bytes:
        return bytes.fromhex(self.broadcast(data.hex(), "sending bytes"))

    def barrier(self, why: str) -> None:
        self.gather(None, why)


class ThreadRanks:
    """`num_ranks` ranks on `num_nodes` nodes.

    timeout_seconds: how long a rank waits for the others, so that one that does not come fails a test instead of
    hanging it.
    """

    def __init__(self, num_ranks: int, num_nodes: int = 1, timeout_seconds: float = 120.0):
        self.runtimes = [ThreadRuntime(self, rank, num_ranks, num_nodes) for rank in range(num_ranks)]
        self._timeout_seconds = timeout_seconds
        self._barrier = threading.Barrier(num_ranks)
        self._slots: list[tuple[str, str]] = [("", "")] * num_ranks

    def run(self, body: Callable[[ThreadRuntime], T]) -> list[T]:
        """Runs `body` for every rank, in threads named "rank-N", and returns the results.

        An error on one rank is raised here, and ends the waits of the others.
        """
        results: list[Any] = [None] * len(self.runtimes)
        errors: list[BaseException] = []
        self._barrier.reset()

        def run_rank(runtime: ThreadRuntime) -> None:
            try:
                results[runtime.rank] = body(runtime)
            except BaseException as error:
                errors.append(error)
                self._barrier.abort()

        threads = [
            threading.Thread(target=run_rank, args=(runtime,), name=f"rank-{runtime.rank}", daemon=True)
            for runtime in self.runtimes
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # the other ranks' waits fail as a consequence
        causes = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
        for error in causes or errors:
            raise error
        return results

    def meet(self, rank: int, value: T, why: str) -> list[T]:
        """The values of all ranks after a JSON round trip. Raises AssertionError if their reasons differ."""
        self._slots[rank] = (why, json.dumps(value))
        self._barrier.wait(self._timeout_seconds)
        slots = list(self._slots)
        self._barrier.wait(self._timeout_seconds)  # wait until all ranks have read the values
        assert len({why for why, _ in slots}) == 1, f"the ranks meet for different reasons: {slots}"
        return [json.loads(text) for _, text in slots]
