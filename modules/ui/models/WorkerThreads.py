"""Threads for work in the background that are kept for the next work. No Tk."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

IDLE_SECONDS = 10.0  # after which a thread without work ends


class WorkerThreads:
    """Any number of works run at the same time.

    `Thread.start` waits until the new thread runs: beside busy processes that takes up to 70 ms, in which the window
    stands still. A thread that is there already is given its work without waiting.
    """

    def __init__(self) -> None:
        self._works: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._num_idle = self._num_busy = 0
        self._lock = threading.Lock()
        self._all_idle = threading.Condition(self._lock)

    def run(self, work: Callable[[], object]) -> None:
        """Run it in a thread. Raises RuntimeError if the system refuses to start another one."""
        with self._lock:
            is_free = self._num_idle > 0
            self._num_idle -= is_free
            self._num_busy += 1
        if is_free:
            self._works.put(work)
            return
        try:
            threading.Thread(target=self._serve, args=(work,), daemon=True).start()
        except RuntimeError:
            self._note_end()
            raise

    def wait(self, seconds: float) -> bool:
        """Wait until no work is being done; whether that is so after `seconds` at most."""
        with self._all_idle:
            return self._all_idle.wait_for(lambda: self._num_busy == 0, seconds)

    def _serve(self, work: Callable[[], object]) -> None:
        while True:
            work()
            del work  # and what it holds, while there is nothing to do
            self._note_end(is_idle=True)
            try:
                work = self._works.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._num_idle:  # else somebody counts on this thread
                        self._num_idle -= 1
                        return
                work = self._works.get()

    def _note_end(self, is_idle: bool = False) -> None:
        with self._all_idle:
            self._num_busy -= 1
            self._num_idle += is_idle
            self._all_idle.notify_all()
