"""What the event files of a run say, read on from where the last reading ended."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from modules.runs.Curve import Curve
from modules.session.event_types import FailedEvent, SampleEvent, SavedEvent, StartedEvent, ValidationEvent
from modules.session.events import EventRecord, decode, read_lines
from modules.session.following import event_files
from modules.session.RunFolder import RunFolder
from modules.session.StepInfo import StepInfo

CHUNK_BYTES = 1 << 20
HEAD_BYTES = 64  # of a file, by which one that was replaced is told from one that has grown
MAX_SAMPLES = 5000  # kept of a run: the last ones
MAX_VALIDATIONS = 1000

_IS_STEP = b'"type": "step"'  # as EventWriter writes it
_NUMBER = rb"([-+.\deE]+|null)"
# A step line as EventWriter writes it: a third of the time of parsing its JSON. `decode` reads all others.
_STEP = re.compile(
    rb'\{"time": ([.\deE+]+), "type": "step", "rank": 0, "epoch": (\d+), "step": (\d+), "steps_total": (\d+), '
    rb'"loss": %b, "smooth_loss": %b, "lr": %b, "samples": (\d+), "seconds": ([.\deE+-]+),' % ((_NUMBER,) * 3)
)


class Sample(NamedTuple):
    """An image that the run has sampled after `step` steps. path: as recorded."""

    step: int
    path: str
    prompt: str


class RunEvents:
    """The sum of all events read so far: figures, the curve, samples, validation and saved models."""

    def __init__(self) -> None:
        self.curve = Curve()
        self.samples: list[Sample] = []
        self.num_samples = 0
        self.validation: list[tuple[int, float | None]] = []
        self.saved: list[tuple[int, str]] = []
        self.first = self.last = 0.0  # times of events, in Unix seconds
        self.step = self.total = self.epoch = 0
        self.loss: float | None = None
        self.failure = ""
        self._earlier_seconds = 0.0  # of the starts before the last one
        self._started = 0.0
        self._read: dict[str, tuple[int, int]] = {}  # event file -> bytes read, and the checksum of its first ones

    @property
    def seconds(self) -> float:
        """How long the run ran: from each of its starts to its last event before the next."""
        return self._earlier_seconds + max(0.0, self.last - self._started)

    def read(self, folder: RunFolder) -> bool:
        """Read what is new; returns False if a file was replaced or has shrunk, so that all has to be read anew.

        Raises OSError.
        """
        files = event_files(folder)
        if not self._read.keys() <= {path.name for path in files}:
            return False
        for path in files:
            offset, head = self._read.get(path.name, (0, 0))
            if offset and (path.stat().st_size < offset or _head(path, offset) != head):
                return False
            while True:
                lines, end = read_lines(path, offset, CHUNK_BYTES)
                self._take_lines(lines, is_main=path == folder.event_path(0))
                is_done, offset = end == offset, end
                if is_done:
                    break
            self._read[path.name] = offset, _head(path, offset)
        return True

    def to_plain(self) -> dict[str, Any]:
        """As JSON data, from which `from_plain` makes the same."""
        prompts = {prompt: number for number, prompt in enumerate(dict.fromkeys(one.prompt for one in self.samples))}
        return {
            "curve": self.curve.to_plain(),
            "prompts": list(prompts),
            "samples": [[one.step, one.path, prompts[one.prompt]] for one in self.samples],
            "validation": self.validation,
            "saved": self.saved,
            "read": self._read,
            **{name: getattr(self, name) for name in _FIGURES},
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> RunEvents:
        """Raises KeyError, IndexError, TypeError or ValueError for anything that `to_plain` has not made."""
        events = cls()
        events.curve = Curve.from_plain(plain["curve"])
        prompts = plain["prompts"]
        events.samples = [Sample(int(step), str(path), prompts[number]) for step, path, number in plain["samples"]]
        events.validation = [(int(step), loss) for step, loss in plain["validation"]]
        events.saved = [(int(step), str(path)) for step, path in plain["saved"]]
        events._read = {name: (int(offset), int(head)) for name, (offset, head) in plain["read"].items()}
        for name in _FIGURES:
            setattr(events, name, plain[name])
        return events

    def _take_lines(self, lines: list[bytes], is_main: bool) -> None:
        for line in lines:
            if _IS_STEP in line:
                if is_main and (match := _STEP.match(line)) is not None:
                    when, epoch, step, total, loss, smooth, _, samples, seconds = match.groups()
                    self._note_time(float(when))
                    self._take_step(
                        int(epoch), int(step), int(total), _number(loss), _number(smooth), int(samples), float(seconds)
                    )
                    continue
                if not is_main:  # those of other ranks repeat it
                    continue
            if line and (record := decode(line)) is not None:
                self._take(record, is_main)

    def _take(self, record: EventRecord, is_main: bool) -> None:
        event = record.event
        if isinstance(event, StartedEvent) and is_main:
            self._earlier_seconds, self._started = self.seconds if self.last else 0.0, event.started
            self.failure = ""
        self._note_time(record.time)
        if isinstance(event, StepInfo):
            self._take_step(
                event.epoch, event.step, event.steps_total, event.loss, event.smooth_loss, event.samples, event.seconds
            )
        elif isinstance(event, SampleEvent):
            self.num_samples += 1
            self.samples = [*self.samples[1 - MAX_SAMPLES :], Sample(event.step, str(event.path), event.prompt)]
        elif isinstance(event, ValidationEvent):
            before = [point for point in self.validation if point[0] < event.step]
            self.validation = [*before[1 - MAX_VALIDATIONS :], (event.step, event.loss)]
        elif isinstance(event, SavedEvent):
            self.saved.append((event.step, str(event.path)))
        elif isinstance(event, FailedEvent):
            self.failure = event.text

    def _take_step(
        self,
        epoch: int,
        step: int,
        total: int,
        loss: float | None,
        smooth: float | None,
        samples: int,
        seconds: float,
    ) -> None:
        if step < 1:
            return
        self.curve.add(step, loss, samples, seconds)
        self.epoch, self.step, self.total = epoch, step, total
        self.loss = smooth

    def _note_time(self, when: float) -> None:
        if not self.first:
            self.first = self._started = self._started or when
        self.last = max(self.last, when)


_FIGURES = (
    *("num_samples", "first", "last", "step", "total", "epoch", "loss", "failure"),
    *("_earlier_seconds", "_started"),
)


def _number(text: bytes) -> float | None:
    return None if text == b"null" else float(text)


def _head(path: Path, offset: int) -> int:
    """The checksum of the first bytes of a file, of those before `offset`."""
    with open(path, "rb") as file:
        return zlib.crc32(file.read(min(HEAD_BYTES, offset)))
