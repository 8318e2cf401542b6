"""The loop that all annotators share: load the next images while the model is busy, annotate, write, report.

Each file is written as soon as it is there, and atomically, so that a run may be killed at any moment and go on later.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from modules.annotators.Captioner import Failure
from modules.annotators.reports import Report
from modules.config.errors import UserError
from modules.curation.FileChanges import ChangedOutside
from modules.data.errors import ImageError

MAX_FAILURES_IN_A_ROW = 5  # more are no fault of the images

Loaded = TypeVar("Loaded")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Steps(Generic[Loaded, Result]):
    """What is done with each image.

    load: what the model sees; raises ImageError. annotate: the results for a batch. write: writes one and returns what
    is reported of it; raises ChangedOutside if its file is not what it was. event: the name of that report.
    """

    load: Callable[[str], Loaded]
    annotate: Callable[[Sequence[Loaded]], Sequence[Result | Failure]]
    write: Callable[[str, Result], dict[str, Any]]
    event: str


def annotate_all(
    paths: Sequence[str], steps: Steps[Loaded, Result], batch_size: int, report: Report, is_canceled: Callable[[], bool]
) -> int:
    """Annotate the images at `paths` and report each; returns how many failed.

    Raises UserError if none of the images can be annotated, by what the model says, or if a file can't be written.
    """
    of, number, num_failed, written, in_a_row = len(paths), 0, 0, 0, 0
    for names, loaded in _batches(paths, steps.load, batch_size):
        if is_canceled():
            break
        usable = [one for one in loaded if not isinstance(one, Failure)]
        results = iter(steps.annotate(usable) if usable else ())
        if is_canceled():  # what was being generated is cut off
            break
        for path, one in zip(names, loaded, strict=True):
            number += 1
            result = one if isinstance(one, Failure) else next(results)
            if isinstance(result, Failure):
                num_failed += 1
                report("failed", path=path, reason=result.reason, number=number, of=of)
                in_a_row += one is not result
                if in_a_row == MAX_FAILURES_IN_A_ROW:
                    raise UserError(f"{in_a_row} images in a row have failed, the last because {result.reason}.")
                continue
            in_a_row = 0
            try:
                facts = steps.write(path, result)
            except ChangedOutside:
                num_failed += 1
                reason = "its file was changed by another program meanwhile"
                report("failed", path=path, reason=reason, number=number, of=of)
                continue
            written += bool(facts.get("written"))
            report(steps.event, path=path, number=number, of=of, **facts)
    report("end", written=written, failed=num_failed, left=of - number, canceled=is_canceled() and number < of)
    return num_failed


def spread(paths: Sequence[str], count: int) -> tuple[str, ...]:
    """At most `count` of the paths, from all over them: neighbors are often alike."""
    if len(paths) <= count:
        return tuple(paths)
    return tuple(paths[number * len(paths) // count] for number in range(count))


def _batches(
    paths: Sequence[str], load: Callable[[str], Loaded], size: int
) -> Iterator[tuple[Sequence[str], list[Loaded | Failure]]]:
    """Each batch of paths with what was loaded; the next one is loaded in a thread meanwhile."""

    def load_all(names: Sequence[str]) -> list[Loaded | Failure]:
        return [_loaded(load, name) for name in names]

    with ThreadPoolExecutor(1) as loading:
        groups = [paths[start : start + size] for start in range(0, len(paths), size)]
        waiting: list[tuple[Sequence[str], Future[list[Loaded | Failure]]]] = []
        for group in itertools.chain(groups, [()]):
            if group:
                waiting.append((group, loading.submit(load_all, group)))
            if len(waiting) > 1 or (waiting and not group):
                names, future = waiting.pop(0)
                yield names, future.result()


def _loaded(load: Callable[[str], Loaded], path: str) -> Loaded | Failure:
    try:
        return load(path)
    except ImageError as error:
        return Failure(error.reason)
