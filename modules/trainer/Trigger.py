"""Decides when a repeated action is due: every N steps, minutes or epochs."""

from __future__ import annotations

import time
from typing import Literal

Unit = Literal["never", "steps", "minutes", "epochs"]


class Trigger:
    """Due every `every` units; with 0 or "never", never."""

    def __init__(self, every: float, unit: Unit):
        self.every = every
        self.unit: Unit = unit if every > 0 else "never"
        self._last_time = time.monotonic()

    def due_after(self, step: int, epoch: int, ends_epoch: bool) -> bool:
        """Whether it is due after optimizer step `step` (from 1) of epoch `epoch` (from 0); the same on all ranks."""
        if self.unit == "steps":
            return _crossed(step, self.every)
        if self.unit == "epochs":
            return ends_epoch and _crossed(epoch + 1, self.every)
        return False

    def due_by_clock(self) -> bool:
        """Whether the minutes have passed. Only rank 0 asks, since clocks differ."""
        return self.unit == "minutes" and time.monotonic() - self._last_time >= 60 * self.every

    def fired(self) -> None:
        self._last_time = time.monotonic()


def _crossed(count: int, every: float) -> bool:
    """Whether a multiple of `every` lies in (count - 1, count]."""
    return int(count / every) > int((count - 1) / every)
