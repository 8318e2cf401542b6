"""Rules of when to sample, validate, back up and save."""

from collections.abc import Iterator

from modules.config.problems import Problem
from modules.config.TrainConfig import TrainConfig


def interval_problems(config: TrainConfig) -> Iterator[Problem]:
    for name in ("sampling", "validation", "backup", "output"):
        part = getattr(config, name)
        if part.unit == "never":
            continue
        path = f"{name}.every"
        if part.every == 0:
            yield Problem(path, f"{path} is 0 {part.unit}: set it above 0, or {name}.unit to never.")
        elif part.unit == "steps" and not part.every.is_integer():
            yield Problem(path, f"{path} is {part.every:g} steps: steps are whole; use a whole number.")
    wanted = config.sampling.at_start or config.sampling.at_end or config.sampling.unit != "never"
    if wanted and not any(sample.enabled for sample in config.sampling.samples):
        message = "sampling.samples has no enabled sample: add a prompt, or set sampling.unit to never."
        yield Problem("sampling.samples", message, blocking=False)
