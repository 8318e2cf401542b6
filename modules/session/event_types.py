"""The events of a run other than its steps (StepInfo). docs/run_folder.md lists types and fields."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar


@dataclass(frozen=True)
class Event:
    """Something that a run reports: a dataclass whose fields are those of a line in an event file.

    type: its name in the file; the listeners' method is `on_` followed by it. Fields declared with the metadata
    NOT_WRITTEN are for listeners only.
    """

    type: ClassVar[str]

    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the listeners' method."""
        return tuple(getattr(self, field.name) for field in fields(self))


NOT_WRITTEN = {"is_written": False}


@dataclass(frozen=True)
class StatusEvent(Event):
    type: ClassVar[str] = "status"
    text: str


@dataclass(frozen=True)
class WaitingEvent(Event):
    """The run waits for something that a person can provide, such as disk space. It no longer does after the next event
    of the same rank that is neither this nor a warning."""

    type: ClassVar[str] = "waiting"
    text: str


@dataclass(frozen=True)
class StartedEvent(Event):
    """The run was started or resumed. started: when, in Unix seconds, which is before its processes existed."""

    type: ClassVar[str] = "started"
    started: float


@dataclass(frozen=True)
class ProgressEvent(Event):
    """text: the activity. done: how many of this rank's `total` items are done."""

    type: ClassVar[str] = "progress"
    text: str
    done: int
    total: int


@dataclass(frozen=True)
class ValidationEvent(Event):
    """loss: None if it was not finite. ema_loss: also None without EMA."""

    type: ClassVar[str] = "validation"
    step: int
    samples: int
    loss: float | None
    ema_loss: float | None


@dataclass(frozen=True)
class SampleEvent(Event):
    type: ClassVar[str] = "sample"
    path: str | Path
    prompt: str
    step: int


@dataclass(frozen=True)
class SamplesEvent(Event):
    """path: the folder with all samples of a step."""

    type: ClassVar[str] = "samples"
    path: str | Path
    step: int


@dataclass(frozen=True)
class BackupEvent(Event):
    type: ClassVar[str] = "backup"
    path: str | Path
    step: int


@dataclass(frozen=True)
class SavedEvent(Event):
    type: ClassVar[str] = "saved"
    path: str | Path
    step: int


@dataclass(frozen=True)
class WarningEvent(Event):
    type: ClassVar[str] = "warning"
    text: str


@dataclass(frozen=True)
class FailedEvent(Event):
    type: ClassVar[str] = "failed"
    text: str


@dataclass(frozen=True)
class FinishedEvent(Event):
    type: ClassVar[str] = "finished"
    step: int
