"""The pieces of a piecewise constant learning rate, as people write them: "1: 0.5, 0.1: 0.8, 0.01"."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple


class Piece(NamedTuple):
    """A factor of the learning rate. end: where it ends, below 1 a share of all steps, from 1 a step; inf for the
    last one."""

    factor: float
    end: float


def read_pieces(text: str) -> list[Piece]:
    """The pieces in order. Raises ValueError, with what is wrong and the remedy."""
    *entries, last = map(str.strip, text.split(","))
    pieces = [Piece(*map(_number, _factor_and_end(entry))) for entry in entries]
    pieces.append(Piece(_number(last), math.inf))
    for before, after in itertools.pairwise(pieces):
        mixed = (before.end < 1) != (after.end < 1) and after.end != math.inf
        if mixed or after.end <= before.end:
            raise ValueError(
                f"{before.end:g} is followed by {after.end:g}; write all ends as shares below 1, or all as steps"
            )
    return pieces


def _factor_and_end(entry: str) -> tuple[str, str]:
    factor, mark, end = entry.partition(":")
    if not mark:
        raise ValueError(f"{entry!r} does not say where it ends; write it as in 1: 0.5, 0.1: 0.8, 0.01")
    return factor, end


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text.strip()!r} is not a number; write it as in 1: 0.5, 0.1: 0.8, 0.01") from None
    if not 0 <= value < math.inf:
        raise ValueError(f"{value:g} is not possible; use numbers from 0 on")
    return value
