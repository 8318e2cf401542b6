"""Which run of a service a run folder belongs to, so that a resumed training continues there."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from modules.session.atomic import write_json

FILE_NAME = "loggers.json"
_ONE_AT_A_TIME = threading.Lock()  # each logger writes from a thread of its own


def read_run_id(folder: Path, service: str) -> str:
    """The id of the run at `service`, as "wandb"; "" if there is none."""
    value = _read(folder).get(service)
    return value if isinstance(value, str) else ""


def write_run_id(folder: Path, service: str, run_id: str) -> None:
    """Raises OSError."""
    with _ONE_AT_A_TIME:
        write_json(folder / FILE_NAME, {**_read(folder), service: run_id})


def _read(folder: Path) -> dict:
    try:
        ids = json.loads((folder / FILE_NAME).read_bytes())
    except (OSError, ValueError):  # missing or damaged
        return {}
    return ids if isinstance(ids, dict) else {}
