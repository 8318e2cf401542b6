"""What a check is: a function of the device that gives cases, each of which is measured when it is its turn."""

from __future__ import annotations

import importlib
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Values = dict[str, Any]
"""What was found in a case, as JSON holds it. "ok": whether it is right; left out where nothing can be wrong."""
Case = tuple[str, Callable[[], Values]]
Check = Callable[[str], Iterable[Case]]

MOST_TEXT = 600  # characters of an error
MOST_LINES = 14  # of a traceback


class NotHere(Exception):
    """A case needs what is not here; the text says what."""


def needs_cuda(device: str) -> None:
    """Raises NotHere on other devices."""
    if not is_cuda(device):
        raise NotHere("needs CUDA")


def is_cuda(device: str) -> bool:
    return device.startswith("cuda")


def load_check(path: str) -> Check:
    """The function of "module:function", a module of this package."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(f"scripts.gpu.{module}"), name)


def measure_cases(path: str, device: str, chosen: Sequence[str] = ()) -> Iterator[Values]:
    """Measures the cases of a check, one after another, or the chosen ones alone; yields a result for each.

    A result has check, case, ok (None: skipped), seconds, the values, and the text of an error or why it was skipped.
    """
    name = path.partition(":")[2]
    try:
        for case, measure in load_check(path)(device):
            if case in chosen or not chosen:
                yield {"check": name, "case": case, **measured(measure)}
    except NotHere as reason:
        yield {"check": name, "case": "", "ok": None, "text": str(reason)}
    except Exception as error:  # the check itself, not one of its cases
        yield {"check": name, "case": "", **_failed(error)}


def measured(measure: Callable[[], Values]) -> Values:
    """The outcome of one case; an error is one, too, so that the next case gets its turn."""
    begun = time.monotonic()
    try:
        values = dict(measure())
        outcome: Values = {"ok": bool(values.pop("ok", True)), "values": values}
    except NotHere as reason:
        outcome = {"ok": None, "text": str(reason)}
    except Exception as error:
        outcome = _failed(error)
    return {**outcome, "seconds": round(time.monotonic() - begun, 1)}


def _failed(error: Exception) -> Values:
    lines = traceback.format_exception(error)
    trace = "".join(lines).splitlines()[-MOST_LINES:]
    return {"ok": False, "text": f"{type(error).__name__}: {error}"[:MOST_TEXT], "trace": trace}
