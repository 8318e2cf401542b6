"""Records where the time of some training steps goes."""

from __future__ import annotations

from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from modules.config.errors import UserError
from modules.session.StepInfo import StepInfo
from modules.session.TrainCallbacks import TrainCallbacks

if TYPE_CHECKING:
    from modules.engine.TrainingEngine import TrainingEngine


class Profiler(TrainCallbacks):
    """Writes traces of the steps of `engine` by torch.profiler, on rank 0, to profile/step-N.json in its folder.

        engine.train(..., callbacks=Profiler(engine, wait=10, active=3))

    N is the last step of the trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

    wait, warmup, active: how many steps to leave out, to profile without keeping them, and to keep.
    repeat: how many traces to write. options: further ones of torch.profiler.profile, such as record_shapes=True.

    Raises UserError for numbers that can't be a schedule.
    """

    def __init__(
        self, engine: TrainingEngine, wait: int = 5, warmup: int = 1, active: int = 3, repeat: int = 1, **options: Any
    ):
        for name, value, least in (
            ("wait", wait, 0),
            ("warmup", warmup, 0),
            ("active", active, 1),
            ("repeat", repeat, 1),
        ):
            if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
                raise UserError(f"Profiler: {name} {value!r}: it must be a whole number, at least {least}.")
        self._engine = engine
        self._schedule = torch.profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=repeat)
        self._options = options
        self._profile: torch.profiler.profile | None = None
        self._step = 0

    @property
    def folder(self) -> Path:
        """Of the traces."""
        return self._engine.folder / "profile"

    def on_started(self, started: float) -> None:
        if self._engine.is_main_process:
            self._profile = torch.profiler.profile(schedule=self._schedule, on_trace_ready=self._write, **self._options)
            self._profile.start()

    def on_step(self, info: StepInfo) -> None:
        self._step = info.step
        if self._profile is not None:
            self._profile.step()

    def on_finished(self, step: int) -> None:
        self._end()

    def on_failed(self, text: str) -> None:
        self._end()

    def _end(self) -> None:
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.stop()

    def _write(self, profile: torch.profiler.profile) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        profile.export_chrome_trace(str(self.folder / f"step-{self._step}.json"))
