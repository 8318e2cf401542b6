"""Sends what a program itself defines to other processes, which can't import it: by cloudpickle.

DataLoader pickles its dataset and functions with plain pickle where its workers are spawned. In a rank, however, the
program's own classes and functions have come by value, and plain pickle does not find them in any module.
"""

from __future__ import annotations

import io
from collections import ChainMap
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import cloudpickle


class SentFunction:
    """A function that reaches spawned processes whatever it is, such as a lambda."""

    def __init__(self, function: Callable[..., Any]):
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return _sent_function, (by_value(self._function),)


def by_value(value: Any) -> bytes:
    """`value` for the process that is just being started; `from_value` restores it there, once.

    Tensors are shared with it, not copied, as DataLoader's own workers share them.
    """
    with io.BytesIO() as file:
        pickler = cloudpickle.Pickler(file)
        # which has torch's reductions, by shared memory
        pickler.dispatch_table = ChainMap(ForkingPickler(file).dispatch_table, pickler.dispatch_table)
        pickler.dump(value)
        return file.getvalue()


def from_value(data: bytes) -> Any:
    """Unpickles only what the process that started this one has just packed, and sent through its own pipe."""
    return cloudpickle.loads(data)


def _sent_function(data: bytes) -> SentFunction:
    return SentFunction(from_value(data))
