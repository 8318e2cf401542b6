"""Loss and metrics of an epoch, from those of its steps."""

from __future__ import annotations

from modules.session.StepInfo import StepInfo
from modules.session.TrainCallbacks import TrainCallbacks


class EpochTotals(TrainCallbacks):
    """Sums the loss over the samples of an epoch, and metrics over what they count."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}

    def clear(self) -> None:
        self._sums.clear()

    def on_step(self, info: StepInfo) -> None:
        if info.loss is None:  # the step was skipped
            return
        figures = {name: value for name, value in info.metrics.items() if not name.startswith("lr/")}
        for name, value in {"train_loss": info.loss, **figures}.items():
            entry = self._sums.setdefault(name, [0.0, 0.0])
            count = info.counts.get(name, info.samples)
            entry[0] += value * count
            entry[1] += count

    def means(self) -> dict[str, float]:
        return {name: total / count for name, (total, count) in self._sums.items()} or {"train_loss": float("nan")}

    def to_json(self) -> dict[str, list[str]]:
        return {name: [repr(value) for value in entry] for name, entry in self._sums.items()}  # JSON has no nan

    def from_json(self, sums: dict[str, list[str]]) -> None:
        self._sums = {name: [float(value) for value in entry] for name, entry in sums.items()}
