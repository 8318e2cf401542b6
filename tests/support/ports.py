"""Ports for tests that start servers and ranks, which other tests do at the same time."""

from __future__ import annotations

import itertools
import os

from modules.machine.ports import next_free_port

# Below those that the system gives to connections (from 32768 on), so that none of these takes one meanwhile, and above
# the one that a run takes unless told otherwise. Each process of tests begins somewhere else.
_FIRST, _LAST, _APART = 13_000, 31_000, 97
_STEP = 4  # from one to the next: a run that finds its port busy takes one after it

_candidates = itertools.count(os.getpid() * _APART, _STEP)


def free_port() -> int:
    """One that this process of tests has not given before, and nothing uses at any address of the machine."""
    return next_free_port(_FIRST + next(_candidates) % (_LAST - _FIRST))
