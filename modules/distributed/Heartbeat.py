"""What a rank does at the moment, for whoever watches it."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from typing import Literal

from modules.config.errors import UserError

Phase = Literal["loading", "joining", "caching", "training", "sampling", "saving", "waiting"]

# Seconds a rank may be silent in a phase before it counts as hung. Loading reads files of many GB; joining has its own
# limits; a first training step compiles kernels; a wait is bounded by the phases of the ranks that are waited for.
PHASE_LIMITS: dict[Phase, float] = {
    "loading": 1800,
    "joining": 1800,
    "caching": 600,
    "training": 600,
    "sampling": 1800,
    "saving": 1800,
    "waiting": 600,
}
LIMIT_VARIABLE = "CHORUS_HEARTBEAT_SECONDS"  # another limit: "60" for every phase, "training=60" for one


class Heartbeat:
    """Does nothing: for a rank that nobody watches. `Lifeline` (lifeline.py) has the one that tells."""

    def __init__(self) -> None:
        self._phase: Phase = "loading"

    @contextlib.contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Inside, this rank is in `phase`; afterwards it is again in the one before."""
        before = self._phase
        self._phase = phase
        self.beat()
        yield  # after an error the phase stays: it is where the rank has failed
        self._phase = before
        self.beat()

    def beat(self, limit_seconds: float | None = None) -> None:
        """Goes on. Cheap enough for every picture: without a limit a few messages a second are sent.

        limit_seconds: how long the next beat may take to come; the phase's own limit by default.
        """

    def _limit(self, limit_seconds: float | None) -> float:
        return read_limits().get(self._phase) or limit_seconds or PHASE_LIMITS[self._phase]


def read_limits(env: Mapping[str, str] = os.environ) -> dict[str, float]:
    """Seconds for each phase that LIMIT_VARIABLE names. Raises UserError for what it can't mean."""
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
        f"{LIMIT_VARIABLE} is {text[:60]!r}: it must be a number of seconds above 0, as in 60, or one for a phase "
        f"({', '.join(PHASE_LIMITS)}), as in training=60; correct it, or unset it."
    )
