"""Reads what a caller needs next, in threads."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import TypeVar

from modules.machine.processor_time import displaced_seconds

T = TypeVar("T")

NUM_READERS = 4
AHEAD = 2 * NUM_READERS  # items, while the caller works with another
# Waiting by processor time, from which items count as waited for. Other systems than Linux don't tell how long a thread
# waits for a processor; then four readers that compute on two cores come to 1.
_MOSTLY_WAITING = 2.0


def read_ahead(function: Callable[[int], T], items: Iterable[int], overlaps: bool = True) -> Iterator[T]:
    """Yields `function` of each item, in order, computed by threads a few items ahead.

    overlaps: whether the threads go on while the caller works with an item, whatever they do. Without it, for a caller
        that keeps all processors busy, they compute as many items as there are threads, and then wait until the caller
        has used these; they go on only as long as the last items were mostly waited for, as with a slow disk or
        network, which takes no processor from the caller.
    """
    with ThreadPoolExecutor(NUM_READERS) as readers:
        items = iter(items)
        waiting: list[Future[tuple[T, float]]] = []
        last: deque[float] = deque(maxlen=AHEAD)  # how much more than computed each was waited for
        while True:
            goes_on = overlaps or sum(last) > 0
            if goes_on or not waiting:
                ahead = AHEAD if goes_on else NUM_READERS
                waiting.extend(readers.submit(_timed, function, item) for item in islice(items, ahead - len(waiting)))
            if not waiting:
                return
            if not goes_on:
                wait(waiting)
            result, waited_more = waiting.pop(0).result()
            last.append(waited_more)
            yield result


def _timed(function: Callable[[int], T], item: int) -> tuple[T, float]:
    """`function` of `item`, and the seconds that it waited for anything else than a processor, less those that it would
    at least wait if it were mostly waiting."""
    started, computed, displaced = time.perf_counter(), time.thread_time(), displaced_seconds()
    result = function(item)
    computed = time.thread_time() - computed
    waited = time.perf_counter() - started - computed - (displaced_seconds() - displaced)
    return result, waited - _MOSTLY_WAITING * computed
