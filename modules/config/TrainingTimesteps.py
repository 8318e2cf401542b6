from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from modules.config.ResolutionShift import ResolutionShift


@dataclass(frozen=True)
class TrainingTimesteps:
    """The distribution of timesteps in a family's training, where it isn't logit-normal with the sampling shift.

    std: of the logit-normal distribution, which has the mean 0.
    parabola: (height, curvature) of a density proportional to height - curvature (t - 1/2)^2, in place of that one.
    shift: the factor by which the noise-to-data ratio grows, or the parameters to compute it from the image size.
    uniform_share: the share of samples whose timesteps are uniform; the others are then stretched to the whole range,
        as `stretched_logit_normal` has it. 0 for neither.
    """

    std: float = 1.0
    parabola: tuple[float, float] | None = None
    shift: float | ResolutionShift = 1.0
    uniform_share: float = 0.0


def training_timesteps(entry: Mapping[str, Any] | None) -> TrainingTimesteps | None:
    """What families.json holds of it."""
    if entry is None:
        return None
    shift, parabola = entry["shift"], entry["parabola"]
    return TrainingTimesteps(
        entry["std"],
        None if parabola is None else tuple(parabola),
        ResolutionShift(**shift) if isinstance(shift, Mapping) else shift,
        entry["uniform_share"],
    )
