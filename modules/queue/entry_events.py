"""What has happened to an entry of the queue: a JSON object per line of its events.jsonl. docs/queue.md has them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from modules.config.own_file import open_own
from modules.queue.ProcessLock import boot_id

End = Literal["finished", "failed", "stopped", "signal", "limit", "paused"]
ENDS: tuple[End, ...] = ("finished", "failed", "stopped", "signal", "limit", "paused")
TYPES = ("added", "started", "ended", "interrupted", "retried")
MAX_TEXT = 2000  # letters; the whole line is written at once

MAX_FRUITLESS = 3
"""How often a run that ends without a reason is started again from the same step, before it counts as failed."""


@dataclass(frozen=True)
class Record:
    """What the events of an entry come to.

    end: how the run ended last; "" if it never did, or is to go on: then `is_open` says whether it was started and its
    end is not noted yet. text: why. seconds: it has trained since it was added or retried, without the open start.
    started, pid, boot: of the last start. first: Unix time of the first start, 0 if there was none. owns: whether the
    run in its folder is its own. devices: those of the last start. fruitless: how often in a row it ended without a
    reason at the step fruitless_step, as seen by one process of the queue. time: of the last event.
    """

    end: End | Literal[""] = ""
    text: str = ""
    seconds: float = 0.0
    is_open: bool = False
    started: float = 0.0
    pid: int = 0
    boot: str = ""
    first: float = 0.0
    owns: bool = False
    devices: tuple[int, ...] = ()
    fruitless: int = 0
    fruitless_step: int = -1
    fruitless_seen_by: str = ""
    time: float = 0.0

    @property
    def was_started(self) -> bool:
        return self.first > 0


def append_event(path: Path, kind: str, **details: Any) -> None:
    """Add a line for an event of `kind`, one of TYPES, and flush it to disk. Raises OSError.

    The line is written at once, after the line end that a power failure may have cut off.
    """
    line = {"time": time.time(), "type": kind, **details}
    if "text" in line:
        line["text"] = str(line["text"])[:MAX_TEXT]
    with open_own(path, "ab", buffering=0) as file:
        start = b"" if file.tell() == 0 or _ends_a_line(path) else b"\n"
        file.write(start + json.dumps(line).encode() + b"\n")
        os.fsync(file.fileno())


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of the file, oldest first; lines that are damaged or of another version are left out."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [event for line in lines if (event := _decode(line)) is not None]


def record_of(events: Iterable[dict[str, Any]]) -> Record:
    """What the events come to."""
    record = Record()
    for event in events:
        record = _after(record, event)
    return record


def _after(record: Record, event: dict[str, Any]) -> Record:
    values = dict(vars(record)) | {"time": event["time"]}
    kind = event["type"]
    if kind == "started":
        values |= {"end": "", "text": "", "is_open": True, "started": event["time"], "pid": int(event.get("pid", 0))}
        values |= {"boot": str(event.get("boot", ""))}
        values |= {"first": record.first or event["time"], "devices": tuple(event.get("devices", ()))}
        values |= {"owns": record.owns or bool(event.get("owns"))}
    elif kind == "retried":
        values |= {"end": "", "text": "", "seconds": 0.0, "fruitless": 0, "fruitless_step": -1}
    elif kind in ("ended", "interrupted"):
        until = float(event.get("until", event["time"]))
        trained = max(0.0, until - record.started) if record.is_open else 0.0
        values |= {"is_open": False, "seconds": record.seconds + trained, "text": str(event.get("text", ""))}
    if kind == "ended":
        end = cast("End", event["status"])
        # after a reboot nobody but the system has ended it
        goes_on = end == "paused" or (end == "signal" and event.get("boot") != boot_id())
        values |= {"end": "" if goes_on else end, "fruitless": 0, "fruitless_step": -1}
    if kind == "interrupted" and event.get("seen"):
        step, seen_by = int(event.get("step", 0)), str(event["seen"])
        is_again = (step, seen_by) == (record.fruitless_step, record.fruitless_seen_by)
        values |= {"fruitless": record.fruitless + 1 if is_again else 1}
        values |= {"fruitless_step": step, "fruitless_seen_by": seen_by}
    return Record(**values)


def count_ends(events: Sequence[dict[str, Any]], status: str = "finished") -> int:
    """How often the entry has ended like this."""
    return sum(event["type"] == "ended" and event["status"] == status for event in events)


def _decode(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
        is_ours = event["type"] in TYPES and isinstance(event["time"], int | float)
        if not is_ours or (event["type"] == "ended" and event["status"] not in ENDS):
            return None
    except (ValueError, KeyError, TypeError):
        return None
    return event


def _ends_a_line(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
