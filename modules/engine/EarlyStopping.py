"""Ends a training whose figure no longer gets better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from modules.engine.arguments import check_count
from modules.engine.Monitor import Mode, Monitor
from modules.session.TrainCallbacks import TrainCallbacks

if TYPE_CHECKING:
    from modules.engine.TrainingEngine import TrainingEngine


class EarlyStopping(TrainCallbacks):
    """Stops `engine` after `patience` validations in which the figure `monitor` was not better than before.

    There is one after each epoch, or every `validate_every_steps` steps.
    min_delta: by how much a value has to be better to count. mode: as in `TrainingEngine.train`.
    It looks at the engine's history, so that a resumed training stops where it would have stopped.
    """

    def __init__(
        self,
        engine: TrainingEngine,
        patience: int = 3,
        monitor: str = "val_loss",
        mode: Mode | None = None,
        min_delta: float = 0.0,
    ):
        check_count("patience", patience)
        self._engine = engine
        self._patience = patience
        self._monitor = Monitor(monitor, mode)
        self._min_delta = min_delta if self._monitor.mode == "max" else -min_delta

    def on_epoch(self, epoch: int, figures: Mapping[str, float]) -> None:
        if not self._engine.history.by_step:
            self._judge(figures, self._engine.history)

    def on_figures(self, step: int, figures: Mapping[str, float]) -> None:
        self._judge(figures, self._engine.history.by_step)

    def _judge(self, figures: Mapping[str, float], history: Mapping[str, list[float]]) -> None:
        self._monitor.check(figures)
        best, waited = None, 0
        for value in history[self._monitor.name]:
            is_better = self._monitor.is_better(value, None if best is None else best + self._min_delta)
            best, waited = (value, 0) if is_better else (best, waited + 1)
        if waited >= self._patience:
            self._engine.stop()
