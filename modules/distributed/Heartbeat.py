"""Reports the current phase of a rank to the process that watches it."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from typing import Literal

from modules.config.errors import UserError

Phase = Literal["loading", "joining", "caching", "training", "sampling", "saving", "waiting", "measuring"]

# Seconds without a beat before a rank counts as hung, by phase. Loading reads files of many GB; joining has its own
# limits; a first training step compiles kernels; waiting is bounded by the phases of the other ranks.
PHASE_LIMITS: dict[Phase, float] = {
    "loading": 1800,
    "joining": 1800,
    "caching": 600,
    "training": 600,
    "sampling": 1800,
    "saving": 1800,
    "waiting": 600,
    "measuring": 600,
}
LIMIT_VARIABLE = "CHORUS_HEARTBEAT_SECONDS"  # overrides the limits: "60" for every phase, "training=60" for one


class Heartbeat:
    """Tracks the phase without reporting it, for a rank that is not watched. `Lifeline` (lifeline.py) reports."""

    def __init__(self) -> None:
        self._phase: Phase = "loading"

    @contextlib.contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Inside, this rank is in `phase`; afterwards it is in the previous phase again."""
        before = self._phase
        self._phase = phase
        self.beat()
        yield  # after an error the phase stays, because the rank has failed in it
        self._phase = before
        self.beat()

    def beat(self, limit_seconds: float | None = None) -> None:
        """Shows that this rank is making progress. Cheap enough for every image, because messages are rate-limited.

        limit_seconds: the time until the next beat is due, for beats within steps, which every rank gives at the same
        places; by default the limit of the phase.
        """

    def _limit(self, limit_seconds: float | None) -> float:
        return read_limits().get(self._phase) or limit_seconds or PHASE_LIMITS[self._phase]


def read_limits(env: Mapping[str, str] = os.environ) -> dict[str, float]:
    """The limits set in LIMIT_VARIABLE, in seconds by phase. Raises UserError for an invalid value."""
    text = env.get(LIMIT_VARIABLE, "")
    if not text:
        return {}
    phase, has_phase, number = text.rpartition("=")
    phases = [phase.strip()] if has_phase else list(PHASE_LIMITS)
    with contextlib.suppress(ValueError):
        seconds = float(number)
        if 0 < seconds < math.inf and PHASE_LIMITS.keys() >= set(phases):
            return dict.fromkeys(phases, seconds)
    raise UserError(
        f"{LIMIT_VARIABLE} is {text[:60]!r}: it must be a number of seconds above 0, such as 60, or one for a phase "
        f"({', '.join(PHASE_LIMITS)}), such as training=60; correct it, or unset it."
    )
