"""Produces items in a background thread, ahead of use."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from typing import TypeVar

T = TypeVar("T")


def prefetch(make: Iterable[T], depth: int) -> Generator[T, None, None]:
    """Yields the items of `make`, produced in a thread up to `depth` items ahead. Its exceptions are raised here."""
    if depth == 0:
        yield from make
        return
    items: queue.Queue = queue.Queue(depth)
    closed = threading.Event()
    end = object()

    def fill() -> None:
        try:
            for item in make:
                if not _put(items, (item, None), closed):
                    return
            _put(items, (end, None), closed)
        except BaseException as error:
            _put(items, (end, error), closed)

    thread = threading.Thread(target=fill, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error = items.get()
            if error is not None:
                raise error
            if item is end:
                return
            yield item
    finally:
        closed.set()
        thread.join()


def _put(items: queue.Queue, item: object, closed: threading.Event) -> bool:
    """Puts `item` into the queue; returns False if the consumer has stopped."""
    while not closed.is_set():
        try:
            items.put(item, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False
