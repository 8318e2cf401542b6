"""What is reported about one optimizer step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from modules.session.event_types import NOT_WRITTEN, Event, loss_text

if TYPE_CHECKING:
    from modules.session.TrainCallbacks import TrainCallbacks


@dataclass(frozen=True)
class StepInfo(Event):
    """One finished optimizer step, summed over all ranks.

    epoch: pass over the data, from 1.
    step: optimizer steps done since the start of the training, this one included; keeps counting after a resume.
    steps_total: value of `step` at which the training ends.
    loss: mean over the step's samples; None if it was not finite and the step was skipped.
    smooth_loss: bias-corrected running mean of `loss` (RunningMean); None before the first finite loss.
    lr: learning rate of the first parameter group in this step.
    samples: samples in this step, over all ranks.
    seconds: wall time of this step, so that samples / seconds is the throughput.
    grad_norm: norm of the gradient before clipping; None if it was not finite or not measured.
    metrics: further numbers by name, for loggers such as TensorBoard.
    data_seconds: how long this rank waited for data in this step.
    device: of this rank, such as "cuda:1".
    memory_bytes, peak_memory_bytes: allocated there after the step, and the maximum so far; None if not measured.
    counts: of what the metrics of these names are means; the others are means over the samples.
    """

    type: ClassVar[str] = "step"
    epoch: int
    step: int
    steps_total: int
    loss: float | None
    smooth_loss: float | None
    lr: float
    samples: int
    seconds: float
    grad_norm: float | None
    metrics: dict[str, float] = field(default_factory=dict, metadata=NOT_WRITTEN)
    data_seconds: float = 0.0
    device: str = ""
    memory_bytes: int | None = None
    peak_memory_bytes: int | None = None
    counts: dict[str, float] = field(default_factory=dict, metadata=NOT_WRITTEN)

    def tell(self, listener: TrainCallbacks) -> None:
        """The listener gets the step as a whole: it has too many fields to pass them one by one."""
        listener.on_step(self)

    def describe(self) -> str:
        loss = self.loss if self.smooth_loss is None else self.smooth_loss
        return f"step {self.step}/{self.steps_total or '?'}, epoch {self.epoch}, loss {loss_text(loss)}"
