"""The event files of a run: one JSON object per line, one file per rank and one for the supervisor.

docs/run_folder.md lists types and fields.
"""

import json
import math
import numbers
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import IO, Any, TypeGuard, get_args, get_type_hints

from modules.config.counted import counted
from modules.config.own_file import open_own
from modules.config.visible_text import find_hidden
from modules.session.event_types import EVENT_TYPES, NOT_WRITTEN, Event
from modules.session.printing import print_line
from modules.session.StepInfo import StepInfo

END_OF_TIME = 2**33  # Unix seconds, in 2242: datetime refuses times far beyond it
MAX_STEP_BYTES = 1024
MAX_TEXT_BYTES = 16 * 1024

_STEP = b'"type": "step"'  # as EventWriter writes it; inside a string the quotes are escaped
_MAX_WAITING_LINES = 10_000  # kept in memory while the disk accepts nothing; beyond that the oldest are dropped
_RETRY_SECONDS = 1.0
_CLOSE_SECONDS = 10.0


@dataclass(frozen=True)
class EventRecord:
    """A line of an event file. time: of writing, in Unix seconds. rank: of the writer, None for the supervisor."""

    time: float
    rank: int | None
    event: Event


def encode(record: EventRecord) -> bytes:
    """The line of an event, including its line end."""
    event = record.event
    kind: type = type(event)
    values = {field.name: to_plain(getattr(event, field.name)) for field in _written_fields(kind)}
    line = {"time": record.time, "type": event.type, "rank": record.rank, **values}
    text = json.dumps(line, ensure_ascii=False, allow_nan=False)
    if find_hidden(text) is not None:  # the file may be read in a terminal, and UTF-8 has no lone surrogates
        text = json.dumps(line, allow_nan=False)
    data = text.encode("utf-8") + b"\n"
    if isinstance(event, StepInfo) and len(data) > MAX_STEP_BYTES:
        raise ValueError(f"step event of {len(data)} bytes: at most {MAX_STEP_BYTES}, there is one every step")
    return data


def decode(line: bytes) -> EventRecord | None:
    """The event of a line; None if the line is no event, is damaged, or has a type unknown to this version.

    Unknown fields are ignored, and a field that may be None may be missing.
    """
    try:
        values = json.loads(line)
        when, rank, event_type = values["time"], values["rank"], EVENT_TYPES[values["type"]]
        if not is_time(when) or not (rank is None or isinstance(rank, int)):
            return None
        event = event_type(**_field_values(event_type, values))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return EventRecord(when, rank, event)


def is_time(value: Any) -> TypeGuard[float]:
    """Whether `value` is a plausible time in Unix seconds."""
    return isinstance(value, (int, float)) and 0 <= value < END_OF_TIME


class EventWriter:
    """Appends events to the file at `path` from a separate thread, so that a slow or full disk never delays a step.

    While the disk is full or gone, lines wait in memory, a single warning goes to stderr and writing is retried.
    An existing file is continued. Use it as a context manager or call `close`.
    rank: None for the supervisor.
    """

    def __init__(self, path: str | os.PathLike, rank: int | None):
        self.path = Path(path)
        self.rank = rank
        self._lines: deque[bytes] = deque(maxlen=_MAX_WAITING_LINES)
        self._changed = threading.Condition()  # guards _lines and _closing; never held while writing to disk
        self._closing = False
        self._file: IO[bytes] | None = None
        self._has_warned = False
        self._thread = threading.Thread(target=self._write_until_closed, name=f"events {self.path.stem}", daemon=True)
        self._thread.start()

    def write(self, event: Event) -> None:
        """Queue one event; returns at once.

        Its fields may be plain data, NumPy numbers and paths. NaN and infinity are written as null, long texts are cut.
        Raises ValueError for a step line above 1 KB and after `close`; TypeError for other data, such as tensors, whose
        value would have to be waited for.
        """
        line = encode(EventRecord(time.time(), self.rank, event))
        with self._changed:
            if self._closing:
                raise ValueError(f"the event file {self.path} is closed")
            self._lines.append(line)
            self._changed.notify()

    def close(self) -> None:
        """Write the queued events and close the file; if the disk still refuses, try one last time."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(_CLOSE_SECONDS)

    def __enter__(self) -> "EventWriter":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _write_until_closed(self) -> None:
        closing = False
        while not closing:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._closing)
                lines, closing = list(self._lines), self._closing
                self._lines.clear()
            unwritten = self._append(lines)
            if unwritten and not closing:
                with self._changed:
                    self._lines = deque([*unwritten, *self._lines], maxlen=_MAX_WAITING_LINES)
                    self._changed.wait_for(lambda: self._closing, timeout=_RETRY_SECONDS)
            elif unwritten:
                print_line(
                    f"{counted(len(unwritten), 'event was', 'events were')} not written to {self.path}", sys.stderr
                )
        if self._file is not None:
            self._file.close()

    def _append(self, lines: list[bytes]) -> list[bytes]:
        """Write `lines` to the file; returns those that could not be written."""
        data = b"".join(lines)
        done = 0
        try:
            if self._file is None:
                cut = _ends_inside_a_line(self.path)
                self._file = open_own(self.path, "ab", buffering=0)  # open until the next error or close
                if cut:
                    self._file.write(b"\n")
            while done < len(data):
                done += self._file.write(data[done:])
        except OSError as error:
            self._warn_once(error)
            if self._file is not None:
                self._file.close()
                self._file = None  # reopened next time: the old handle stays dead after a network disk comes back
            return _lines_after(lines, done)
        return []

    def _warn_once(self, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            text = f"Events can't be written to {self.path} ({error}); the training continues without them."
            print_line(text, sys.stderr)


def read_events(
    path: str | os.PathLike, offset: int = 0, max_bytes: int | None = None, only_last_step: bool = False
) -> tuple[list[EventRecord], int]:
    """The events in the file at `path` from byte `offset` on, and the offset to continue from.

    max_bytes: read at most that much (it has to exceed the longest line), leaving the rest for later; None: all.
    only_last_step: skip all steps but the last one read, as parsing steps takes most of the time in a long run.
    An incomplete last line is left for the next read; lines that are no events are skipped. A file that has become
    shorter than `offset` is read from its start; a missing file gives ([], 0).
    """
    lines, offset = read_lines(path, offset, max_bytes)
    if only_last_step:
        lines = _without_old_steps(lines)
    records = [record for line in lines if (record := decode(line)) is not None]
    return records, offset


def read_lines(path: str | os.PathLike, offset: int = 0, max_bytes: int | None = None) -> tuple[list[bytes], int]:
    """The complete lines of an event file from byte `offset` on, and the offset to continue from, as `read_events`."""
    try:
        with open(path, "rb") as file:
            if file.seek(0, os.SEEK_END) < offset:
                offset = 0
            file.seek(offset)
            data = file.read(-1 if max_bytes is None else max_bytes)
    except FileNotFoundError:
        return [], 0
    end = data.rfind(b"\n") + 1
    if not end and len(data) == max_bytes:
        end = len(data)  # no line is that long: damaged data, such as zeros after a power failure
    return data[:end].split(b"\n"), offset + end


def to_plain(value: Any) -> Any:
    """`value` as plain JSON data: NaN and infinity become None, paths become text, and text is cut at 16 KB.

    Raises TypeError for anything but text, numbers, paths and collections of these.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):  # NumPy's float32 is a Real but not a float
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, os.PathLike):
        return _cut(os.fspath(value))
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    raise TypeError(f"{value.__class__.__name__} is not plain data: give a number, a text, a path or a list of these")


def _cut(text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_TEXT_BYTES:
        return text
    return data[: MAX_TEXT_BYTES - len("…".encode())].decode("utf-8", "ignore") + "…"


def _ends_inside_a_line(path: Path) -> bool:
    """Whether a killed writer left an incomplete line, which must not be joined with the next one."""
    if not path.exists() or not path.stat().st_size:
        return False
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _lines_after(lines: list[bytes], written_bytes: int) -> list[bytes]:
    for index, line in enumerate(lines):
        written_bytes -= len(line)
        if written_bytes < -1:  # at -1 only the line end is missing, which is written when the file is next opened
            return lines[index:]
    return []


def _without_old_steps(lines: list[bytes]) -> list[bytes]:
    last = next((line for line in reversed(lines) if _STEP in line), None)
    return [line for line in lines if _STEP not in line or line is last]


@lru_cache
def _written_fields(event_type: type) -> list[Field]:
    return [field for field in fields(event_type) if field.metadata != NOT_WRITTEN]


@lru_cache
def _read_fields(event_type: type) -> list[tuple[str, tuple[type, ...], Any]]:
    """For each field its name, the types it may have in JSON, and the value to use if it is missing."""
    found = []
    hints = get_type_hints(event_type)
    for field in _written_fields(event_type):
        declared = hints[field.name]
        kinds = tuple(kind for kind in get_args(declared) or (declared,) if kind is not Path)
        default = field.default
        if default is MISSING and NoneType in kinds:
            default = None
        found.append((field.name, (*kinds, int) if float in kinds else kinds, default))
    return found


def _field_values(event_type: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Raises TypeError for a value of the wrong type, ValueError for an implausibly large one."""
    found = {}
    for name, kinds, default in _read_fields(event_type):
        value = found[name] = values.get(name, default)
        kind = type(value)
        if kind not in kinds:
            raise TypeError(f"{name} is {value!r}")
        if kind is int and abs(value) >= 2**63:
            raise ValueError(f"{name} is {value!r}")
        if kind is float and not math.isfinite(value) and NoneType in kinds:
            found[name] = None
    return found
