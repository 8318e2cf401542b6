"""The denoiser to train where the one in a model's index is distilled to few steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Undistilled:
    """A denoiser that published models have in a folder which their index does not name; `model.denoiser` names it.

    folder: of the denoiser. schedule: what it needs in the config of the scheduler, which a distilled model's lacks.
    """

    folder: str
    schedule: Mapping[str, Any]

    def is_met(self, scheduler: Mapping[str, Any]) -> bool:
        """Whether a model is not distilled, by the config of its scheduler."""
        return all(scheduler.get(name) == value for name, value in self.schedule.items())
