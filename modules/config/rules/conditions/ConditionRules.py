"""What settings have to do with a kind of condition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modules.config.problems import Problem
    from modules.config.TrainConfig import TrainConfig


class ConditionRules:
    """Each kind overrides what matters to it; the object is called RULES in the file of the kind's name."""

    def problems(self, config: TrainConfig) -> Iterator[Problem]:
        """Problems of the settings of a run, whatever its family."""
        return iter(())

    def why_not_sharded(self, config: TrainConfig) -> Iterator[tuple[str, str]]:
        """(path of a setting, why a denoiser can't be sharded with it)."""
        return iter(())

    def further_pixels(self, config: TrainConfig) -> int:
        """How many pixels a denoiser sees beside those of a sample, for the memory estimate."""
        return 0

    def images_at_once(self, config: TrainConfig) -> int:
        """How many images the latents of a sample hold, each of which the denoiser treats as an image."""
        return 1
