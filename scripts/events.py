"""What scripts that make a new folder tell a program that has started them: a line of JSON for each event."""

from __future__ import annotations

import argparse
import json
import sys

from scripts.terminal import show


def add_event_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs: each event is a line of JSON")
    parser.add_argument("--listen", action="store_true", help='the line "cancel" on stdin, or its end, cancels')


def tell(event: str, **values: object) -> None:
    """At once, for somebody is waiting for it."""
    show(json.dumps({"event": event, **values}))
    sys.stdout.flush()
