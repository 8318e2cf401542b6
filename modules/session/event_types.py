"""The events of a run other than its steps (StepInfo). docs/run_folder.md lists types and fields."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from modules.config.counted import counted

if TYPE_CHECKING:
    from modules.session.TrainCallbacks import TrainCallbacks

EVENT_TYPES: dict[str, type[Event]] = {}  # by name; each type enters itself as it is declared


@dataclass(frozen=True)
class Event:
    """Something that a run reports: a dataclass whose fields are those of a line in an event file.

    type: its name in the file. Fields declared with the metadata NOT_WRITTEN are for listeners only.
    """

    type: ClassVar[str]

    def __init_subclass__(cls) -> None:
        EVENT_TYPES[cls.type] = cls

    def tell(self, listener: TrainCallbacks) -> None:
        """Call the listener's method for this event."""
        raise NotImplementedError

    def describe(self) -> str:
        """The event for a log, without a full stop."""
        return self.type


NOT_WRITTEN = {"is_written": False}


@dataclass(frozen=True)
class StatusEvent(Event):
    type: ClassVar[str] = "status"
    text: str

    def tell(self, listener: TrainCallbacks) -> None:
        listener.on_status(self.text)

    def describe(self) -> str:
        return self.text


@dataclass(frozen=True)
class WaitingEvent(Event):
    """The run waits for something that a person can provide, such as disk space. It no longer does after the next event
    of the same rank that is neither this nor a warning."""

    type: ClassVar[str] = "waiting"
    text: str

    def tell(self, listener: TrainCallbacks) -> None:
        listener.on_waiting(self.text)

    def describe(self) -> str:
        return self.text


@dataclass(frozen=True)
class StartedEvent(Event):
    """The run was started or resumed. started: when, in Unix seconds, which is before its processes existed."""

    type: ClassVar[str] = "started"
    started: float

    def tell(self, listener: TrainCallbacks) -> None:
        listener.on_started(self.started)

    def describe(self) -> str:
        return "Started"


@dataclass(frozen=True)
class ProgressEvent(Event):
    """text: the activity. done: how many of this rank's `total` items are done."""

    type: ClassVar[str] = "progress"
    text: str
    done: int
    total: int

    def tell(self, listener: TrainCallbacks) -> None:
        listener.on_progress(self.text, self.done, self.total)

    def describe(self) -> str:
        return f"{self.text}: {self.done} of {self.total}"


@dataclass(frozen=True)
class ValidationEvent(Event):
    """loss: None if it was not finite. ema_loss: also None without EMA."""

    type: ClassVar[str] = "validation"
    step: int
    samples: int
    loss: float | None
    ema_loss: float | None

    def tell(self, listener: TrainCallbacks) -> None:
        listener.on_validation(self.step, self.samples, self.loss, self.ema_loss)

    def describe(self) -> str:
        return f"Validation at step {self.step}: loss {loss_text(self.loss)} ({counted(self.samples, 'sample')})"


@dataclass(frozen=True)
class SampleEvent(Event):
    type: ClassVar[str] = "sample"
    path: str | Path
    prompt: str
    step: int

    def tell(self, listener: TrainCallbacks) -> None:
        listener.on_sample(self.path, self.prompt, self.step)

    def describe(self) -> str:
        return f"Sample at step {self.step}: {self.path}"


@dataclass(frozen=True)
class SamplesEvent(Event):
    """path: the folder with all samples of a step."""

    type: ClassVar[str] = "samples"
    path: str | Path
    step: int

    def tell(self, listener: TrainCallbacks) -> None:
        listener.on_samples(self.path, self.step)

    def describe(self) -> str:
        return f"All samples at step {self.step}: {self.path}"


@dataclass(frozen=True)
class BackupEvent(Event):
    type: ClassVar[str] = "backup"
    path: str | Path
    step: int

    def tell(self, listener: TrainCallbacks) -> None:
        listener.on_backup(self.path, self.step)

    def describe(self) -> str:
        return f"Backup at step {self.step}: {self.path}"


@dataclass(frozen=True)
class SavedEvent(Event):
    type: ClassVar[str] = "saved"
    path: str | Path
    step: int

    def tell(self, listener: TrainCallbacks) -> None:
        listener.on_saved(self.path, self.step)

    def describe(self) -> str:
        return f"Model saved at step {self.step}: {self.path}"


@dataclass(frozen=True)
class WarningEvent(Event):
    type: ClassVar[str] = "warning"
    text: str

    def tell(self, listener: TrainCallbacks) -> None:
        listener.on_warning(self.text)

    def describe(self) -> str:
        return self.text


@dataclass(frozen=True)
class FailedEvent(Event):
    type: ClassVar[str] = "failed"
    text: str

    def tell(self, listener: TrainCallbacks) -> None:
        listener.on_failed(self.text)

    def describe(self) -> str:
        return self.text


@dataclass(frozen=True)
class FinishedEvent(Event):
    type: ClassVar[str] = "finished"
    step: int

    def tell(self, listener: TrainCallbacks) -> None:
        listener.on_finished(self.step)

    def describe(self) -> str:
        return f"Finished after {counted(self.step, 'step')}"


def loss_text(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.4f}"
