"""What to write in place of a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from modules.config.problems import either

MAX_COMPARED = 60  # characters of the unknown name
MAX_LISTED = 8
MAX_SUGGESTED = 3
_CLEAR = 0.85  # the similarity from which a single name is meant


def in_place_of(name: str, known: Collection[str], listed_in: str) -> str:
    """The end of a sentence about an unknown name: the nearest of the `known` ones, all of a few, or where they are.

    listed_in: what lists all of them, such as a page or an option.
    """
    short = name[:MAX_COMPARED]
    if clear := difflib.get_close_matches(short, known, n=1, cutoff=_CLEAR):
        return f"did you mean {clear[0]}?"
    close = difflib.get_close_matches(short, known, n=MAX_SUGGESTED)
    close = close or [one for one in sorted(known) if short and short.lower() in one][:MAX_SUGGESTED]
    if close:
        meant = close[0] if len(close) == 1 else either(close)
        return f"did you mean {meant}?" if len(known) <= MAX_LISTED else f"did you mean {meant}? {listed_in} lists all."
    if len(known) <= MAX_LISTED:
        return f"use {either(sorted(known)) if len(known) > 1 else next(iter(known))}."
    return f"{listed_in} lists them."
