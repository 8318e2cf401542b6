"""Seeded mutations of settings, headers and bytes, for tests that no input leads to a traceback, a hang or odd output.

A test takes `cases(total)`: some thirty seeds in a usual run, all `total` with `-m proof`.
"""

from __future__ import annotations

import contextlib
import copy
import random
import signal
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from modules.config.errors import UserError
from modules.config.visible_text import visible_text

SAMPLED = 30  # seeds of a usual run
CHUNK = 10  # seeds of one test, whose fixtures are then made once for several
SECONDS = 300  # for one case, on a busy machine

ODD_VALUES = (
    None, True, False, 0, 1, -1, 3, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**30, -(2**40), 0.0, -0.5, 1e-300, 9e15, 1e21,
    1e300, float("nan"), float("inf"), "", " ", "no", "1e-4", "x" * 5000, "\x1b[31m", "a\nb", "\u202egnp", "ü/ß",
    "0x10", "\ud800", "../../x", "/dev/null", "/proc/self/mem", "~nobody/x", "C:\\x", "sd15", "lora", [], {}, [0],
    [2**31], [[]], ["a", None], {"a": 1}, {"path": "x"},
)  # fmt: skip


def cases(total: int) -> list[Any]:
    """Parameters of a test: seeds in chunks, of which all but the first few only run with `-m proof`."""
    chunks = [range(start, min(start + CHUNK, total)) for start in range(0, total, CHUNK)]
    return [
        pytest.param(chunk, id=f"{chunk[0]}-{chunk[-1]}", marks=[] if chunk[0] < SAMPLED else [pytest.mark.proof])
        for chunk in chunks
    ]


@contextlib.contextmanager
def bounded(seed: int) -> Iterator[None]:
    """Ends a case that hangs, and names its seed in whatever error escapes."""

    def end(number: int, frame: Any) -> None:
        raise TimeoutError(f"took more than {SECONDS} s")

    can_alarm = hasattr(signal, "SIGALRM")
    before = signal.signal(signal.SIGALRM, end) if can_alarm else None
    if can_alarm:
        signal.alarm(SECONDS)
    try:
        yield
    except Exception as error:
        raise AssertionError(f"the case with seed {seed} ended in {type(error).__name__}") from error
    finally:
        if can_alarm:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)


def refused_with(kind: type[UserError], read: Callable[[], object]) -> str | None:
    """The message of an error of this kind that `read` raises, as it is printed; None if it raises none."""
    try:
        read()
    except kind as error:
        message = visible_text(str(error))
        check_text(message)
        return message
    return None


def check_text(text: str) -> None:
    """What is told to a person must not control the terminal, nor fill it."""
    raw = {letter for letter in text if unicodedata.category(letter) in ("Cc", "Cf", "Cs") and letter != "\n"}
    assert not raw, f"{raw} in {text[:300]!r}"
    assert len(text) < 6000, text[:300]


def mutated_values(values: Any, rng: random.Random, fixed: tuple[str, ...] = ()) -> Any:
    """A copy with one to three entries replaced, removed, renamed or added. fixed: keys whose values stay."""
    values = copy.deepcopy(values)
    for _ in range(rng.choice((1, 1, 2, 3))):
        place, key = rng.choice(list(_entries(values, fixed)))
        action = rng.random()
        if action < 0.7:
            place[key] = _other_value(place[key], rng)
        elif action < 0.8:
            del place[key]
        elif isinstance(place, dict):
            name = rng.choice((f"{key}x", f"{key}\ud800", "", "a.b", "\x1b", 3))
            place[name] = place.pop(key) if action < 0.9 else rng.choice(ODD_VALUES)
        else:
            place.append(rng.choice(ODD_VALUES))
        if not any(True for _ in _entries(values, fixed)):
            break
    return values


def mutated_bytes(content: bytes, rng: random.Random, names: tuple[bytes, ...] = ()) -> bytes:
    """Content with bytes flipped, cut out, repeated, overwritten or cut off. names: markers that may become others."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        start = rng.randrange(max(1, min(len(data), rng.choice((64, 2048, len(data) or 1)))))
        length = rng.choice((1, 2, 4, 8, 64))
        present = [name for name in names if name in data]
        action = rng.choice(("flip", "flip", "cut", "repeat", "fill", "end", "name"))
        if action == "flip":
            for position in range(start, min(start + length, len(data))):
                data[position] = rng.randrange(256)
        elif action == "cut":
            del data[start : start + length]
        elif action == "repeat":
            data[start:start] = data[start : start + length]
        elif action == "fill":
            data[start : start + length] = bytes([rng.choice((0, 0x7F, 0x80, 0xFF))]) * length
        elif action == "end":
            del data[start + length :]
        elif present:
            name = rng.choice(present)
            at = data.index(name)
            data[at : at + len(name)] = bytes(rng.choice(b"az09\x00\xff") for _ in name)
    return bytes(data)


def _entries(values: Any, fixed: tuple[str, ...]) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every entry, on all levels."""
    items = list(values.items()) if isinstance(values, dict) else list(enumerate(values))
    for key, inner in items:
        if key in fixed:
            continue
        yield values, key
        if isinstance(inner, dict | list) and inner:
            yield from _entries(inner, fixed)


def _other_value(value: Any, rng: random.Random) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.5:
        return rng.choice((value + 1, -value, value * 1000, value / 3, 2**31, 10**12, 0))
    if isinstance(value, str) and rng.random() < 0.3:
        return rng.choice((value[::-1], value.upper(), f" {value}", f"{value}\x00", f"{value}\x9b1m", f'"{value}"'))
    return rng.choice(ODD_VALUES)
