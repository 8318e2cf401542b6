"""A name as an option of a script, of many that can't all be printed above an error."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection

from modules.config.suggestions import MAX_COMPARED, in_place_of


def name_among(known: Collection[str], what: str, listed_in: str) -> Callable[[str], str]:
    """argparse's `type` for one of the `known` names. what: what they are. listed_in: what lists all of them."""

    def name(text: str) -> str:
        if not text or text in known:  # argparse hands the default on, too
            return text
        raise argparse.ArgumentTypeError(
            f"unknown {what} {text[:MAX_COMPARED]!r}: {in_place_of(text, known, listed_in)}"
        )

    return name
