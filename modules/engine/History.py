"""The losses and metrics of a training, one value per epoch."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from modules.config.errors import UserError
from modules.session.atomic import write_text


class History(Mapping[str, list[float]]):
    """Name -> one value per epoch: "train_loss", "lr", "val_loss" (with a validation loader) and each metric.

    best_epoch: the best epoch so far (from 1) by the monitored figure; None before there is one.
    by_step: with `validate_every_steps`, "step" and the figures of each validation. Then best_epoch stays None, and
        best_step is the step of the best validation so far.
    stopped: whether training was stopped on request before its last epoch.
    """

    def __init__(self, values: Mapping[str, list[float]] | None = None, best_epoch: int | None = None):
        self._values = {name: list(series) for name, series in (values or {}).items()}
        self.best_epoch = best_epoch
        self.by_step: dict[str, list[float]] = {}
        self.best_step: int | None = None
        self.stopped = False

    def __getitem__(self, name: str) -> list[float]:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"History({self._values!r})"

    @property
    def num_epochs(self) -> int:
        """The number of epochs so far."""
        return max(map(len, self._values.values()), default=0)

    def append(self, figures: Mapping[str, float]) -> None:
        """Adds an epoch. A new name gets nan for the previous epochs."""
        _append(self._values, figures)

    def append_step(self, step: int, figures: Mapping[str, float]) -> None:
        """Adds a validation after `step` optimizer steps."""
        _append(self.by_step, {"step": step, **figures})

    def best_value(self, name: str) -> float | None:
        """The figure `name` of the best epoch or validation so far; None before there is one."""
        values, index = self._values, (self.best_epoch or 0) - 1
        if self.best_step is not None:
            values, index = self.by_step, self.by_step["step"].index(self.best_step)
        if index < 0 or name not in values or math.isnan(values[name][index]):
            return None
        return values[name][index]

    def save(self, path: Path) -> None:
        """Writes JSON: {"epochs": number, "best_epoch": number or null, "values": {name: [number or null]}}.

        With `validate_every_steps` also "best_step", and "by_step" like "values".
        """
        write_text(path, json.dumps(self.to_json(), indent=1) + "\n")

    def to_json(self) -> dict:
        """The data for `from_json`; values that are not finite become null."""
        data = {"epochs": self.num_epochs, "best_epoch": self.best_epoch, "values": _to_json(self._values)}
        if self.by_step:
            data |= {"best_step": self.best_step, "by_step": _to_json(self.by_step)}
        return data

    @classmethod
    def from_json(cls, data: dict) -> History:
        history = cls(_from_json(data["values"]), data["best_epoch"])
        history.by_step, history.best_step = _from_json(data.get("by_step", {})), data.get("best_step")
        return history

    def plot(self, path: str | Path) -> None:
        """Plots losses, metrics and learning rate over the epochs and saves the figure to `path`.

        Raises UserError if Matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure  # not pyplot, which keeps figures and needs a display
        except ImportError as error:
            raise UserError("history.plot needs Matplotlib: install it with `pip install matplotlib`.") from error
        groups = [[name for name in self if name.endswith("loss")], [n for n in self if not n.endswith("loss")]]
        figure = Figure(figsize=(5 * len(groups), 3.6), layout="constrained")
        for axes, names in zip(figure.subplots(1, len(groups)), groups, strict=True):
            for name in names:
                axes.plot(range(1, len(self[name]) + 1), self[name], label=name)
            axes.set_xlabel("epoch")
            if names:
                axes.legend()
        figure.savefig(path)


def _append(values: dict[str, list[float]], figures: Mapping[str, float]) -> None:
    count = max(map(len, values.values()), default=0)
    for name in {**values, **figures}:
        values.setdefault(name, [math.nan] * count).append(figures.get(name, math.nan))


def _to_json(values: Mapping[str, list[float]]) -> dict[str, list[float | None]]:
    return {name: [v if math.isfinite(v) else None for v in series] for name, series in values.items()}


def _from_json(values: Mapping[str, list[float | None]]) -> dict[str, list[float]]:
    return {name: [math.nan if v is None else v for v in series] for name, series in values.items()}
