"""Sizes of training and sample images that a model can process, in pixels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from modules.config.DataConfig import DataConfig
from modules.config.problems import Problem, set_to
from modules.config.SampleConfig import SampleConfig
from modules.config.TrainConfig import TrainConfig


def size_problems(config: TrainConfig, align: int, family: str) -> Iterator[Problem]:
    """The sizes that the family can't process.

    align: every side must be a multiple of it. family: its name, for messages.
    """
    data = config.data
    step = data.bucket_step if data.bucketing else align
    sizes = dict(_trained_sizes(config))
    if not data.bucketing and (data.width is None) != (data.height is None):
        given, other = ("width", "height") if data.height is None else ("height", "width")
        message = f"data.{given} {getattr(data, given)} without data.{other}: give both, or leave both empty."
        yield Problem(f"data.{other}", message)
    if data.fixed_shape:
        yield from _fixed_shape_problems(data, align, family)
        sizes = {}
    for setting, size in sizes.items():
        if data.bucketing and data.max_side is not None and size > data.max_side:
            message = f"data.max_side {data.max_side}: is less than {setting} ({size}); use {size} or more."
            yield Problem("data.max_side", message, remedy=set_to("data.max_side", max(sizes.values())))
            return
        smallest = min(sizes.values())
        useful = _useful_step(data, smallest, smallest, align) or smallest
        if problem := resolution_problem(size, step, align, setting, family, useful):
            yield _of_the_list(problem, config)
    for number, sample in enumerate(config.sampling.samples):
        for side, length in (("width", sample.width), ("height", sample.height)):
            setting = f"sampling.samples.{number}.{side}"
            if length is not None and (problem := resolution_problem(length, align, align, setting, family)):
                yield problem


def sample_size(sample: SampleConfig, data: DataConfig) -> tuple[int, int]:
    """(width, height) of a sample's images. data: of the run, for sides that are not given."""
    width, height = data.shape
    return sample.width or width, sample.height or height


def largest_area(config: TrainConfig) -> int:
    """The area in pixels of the largest images that are trained."""
    if config.data.fixed_shape:
        return math.prod(config.data.fixed_shape)
    return max(size for _, size in _trained_sizes(config)) ** 2


def resolution_problem(
    resolution: int,
    step: int,
    align: int,
    setting: str = "data.resolution",
    family: str = "the model",
    useful: int | None = None,
) -> Problem | None:
    """Why the model can't process a size, with the nearest ones that it can.

    resolution: the value of `setting`. step: data.bucket_step. useful: the step that its remedy sets.
    """
    for name, value in ((setting, resolution), ("data.bucket_step", step)):
        if value % align or value < align:
            below = value // align * align
            nearest = f"{below} or {below + align}" if below > 0 else f"{align}"
            message = f"{name} {value}: {family} needs a multiple of {align}; use {nearest}."
            return Problem(name, message, remedy=set_to(name, below + align))
    return step_problem(step, resolution, setting, useful)


def step_problem(
    step: int, resolution: int, setting: str = "data.resolution", useful: int | None = None
) -> Problem | None:
    """Whether buckets of this step are possible: as `resolution_problem`."""
    if step <= resolution:
        return None
    message = f"data.bucket_step {step}: must not be larger than {setting} ({resolution}); use {resolution} or less."
    return Problem("data.bucket_step", message, remedy=set_to("data.bucket_step", useful or resolution))


def lone_bucket(config: TrainConfig, align: int) -> Iterator[Problem]:
    """A warning if buckets of all resolutions are the square alone, and smaller steps would give others."""
    data, size = config.data, max(size for _, size in _trained_sizes(config))
    if not data.bucketing or _has_other_shapes(data, size, data.bucket_step):
        return
    step = _useful_step(data, size, data.bucket_step - 1, align)
    if step is not None:
        message = (
            f"data.bucket_step {data.bucket_step}: at a resolution of {size}, the only shape is the square, to which "
            f"portraits and landscapes are cropped; use {step} or less."
        )
        yield Problem("data.bucket_step", message, blocking=False, remedy=set_to("data.bucket_step", step))


def _useful_step(data: DataConfig, resolution: int, limit: int, align: int) -> int | None:
    """The largest step up to `limit` that divides the resolution, so that the square keeps its size, and has buckets
    beside the square; None if there is none."""
    steps = (step for step in range(limit // align * align, 0, -align) if resolution % step == 0)
    return next((step for step in steps if _has_other_shapes(data, resolution, step)), None)


def _has_other_shapes(data: DataConfig, resolution: int, step: int) -> bool:
    """Whether there is a bucket beside the square: the one next to it has the smallest aspect ratio."""
    longer = resolution // step * step + step
    shorter = resolution**2 // longer // step * step
    return longer <= min(data.max_aspect * shorter, data.max_side or math.inf)


def _fixed_shape_problems(data: DataConfig, align: int, family: str) -> Iterator[Problem]:
    for name, length in zip(("width", "height"), data.shape, strict=True):
        if problem := resolution_problem(length, align, align, f"data.{name}", family):
            yield problem


def _of_the_list(problem: Problem, config: TrainConfig) -> Problem:
    """A problem of one entry of a list of resolutions as one of the whole setting."""
    path, _, number = problem.path.rpartition(".")
    section, _, name = path.rpartition(".")
    if name != "resolutions" or problem.remedy is None:
        return problem
    owner = config.data if section == "data" else config.concepts[int(section.rpartition(".")[2])]
    sizes = list(owner.resolutions)
    sizes[int(number)] = problem.remedy.values[problem.path]
    return replace(problem, path=path, remedy=set_to(path, sizes, ", ".join(map(str, sizes))))


def _trained_sizes(config: TrainConfig) -> Iterator[tuple[str, int]]:
    yield "data.resolution", config.data.resolution
    for number, resolution in enumerate(config.data.resolutions):
        yield f"data.resolutions.{number}", resolution
    for number, concept in enumerate(config.concepts):
        if concept.enabled and concept.resolution is not None:
            yield f"concepts.{number}.resolution", concept.resolution
        if concept.enabled:
            for position, resolution in enumerate(concept.resolutions):
                yield f"concepts.{number}.resolutions.{position}", resolution
