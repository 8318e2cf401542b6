"""The families as a choice of a script: there are too many to be printed above every error."""

from __future__ import annotations

import argparse
import difflib

from modules.families.registry import FAMILIES


def family(name: str) -> str:
    """The name of a family, as argparse's `type`."""
    if not name or name in FAMILIES:  # argparse hands the default on, too
        return name
    close = difflib.get_close_matches(name[:60], FAMILIES, n=1)
    meant = f"did you mean {close[0]}?" if close else "docs/families.md lists them."
    raise argparse.ArgumentTypeError(f"unknown family {name[:60]!r}; {meant}")
