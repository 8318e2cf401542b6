"""The families as a choice of a script: there are too many to be printed above every error."""

from __future__ import annotations

import argparse

from modules.config.installation import docs_page
from modules.config.suggestions import in_place_of
from modules.families.registry import FAMILIES


def family(name: str) -> str:
    """The name of a family, as argparse's `type`."""
    if not name or name in FAMILIES:  # argparse hands the default on, too
        return name
    raise argparse.ArgumentTypeError(
        f"unknown family {name[:60]!r}: {in_place_of(name, FAMILIES, docs_page('families'))}"
    )
