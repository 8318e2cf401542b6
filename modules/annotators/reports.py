"""What a child process of the dataset tools says while it works: lines of JSON for the window, or text for people.

Each line is an object with the name of its event and what belongs to it, as the methods of TextReport take it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

from modules.config.counted import counted
from modules.config.visible_text import visible_line
from modules.session.byte_sizes import spoken_bytes


class Report(Protocol):
    """Receives events by name, with what belongs to them."""

    def __call__(self, event: str, **facts: Any) -> None: ...


class JsonReport:
    """Prints each event as a line of JSON. show: prints a line."""

    def __init__(self, show: Callable[[str], None]):
        self._show = show

    def __call__(self, event: str, **facts: Any) -> None:
        self._show(json.dumps({"event": event, **facts}))


class TextReport:
    """Prints what happens for people. show: prints a line."""

    def __init__(self, show: Callable[[str], None]):
        self._show = show

    def __call__(self, event: str, **facts: Any) -> None:
        say = getattr(self, f"_{event}", None)
        if say is not None:  # what only a window has a use for is not said
            say(**facts)

    def _plan(self, images: int, chosen: int, done_before: int, resumed: int, sent_to: str, model: str) -> None:
        kept = f", {done_before} keep what they have" if done_before else ""
        again = f", {resumed} were done before the last run was interrupted" if resumed else ""
        self._line(f"{counted(chosen, 'image')} of {images} for {model}{kept}{again}.")
        if sent_to:
            self._line(sent_to)

    def _skipped(self, path: str, reason: str) -> None:
        self._line(f"left out: {path}: {reason}")

    def _downloading(self, done: int, total: int) -> None:
        self._line(f"downloading: {spoken_bytes(done)} of {spoken_bytes(total)}")

    def _loading(self) -> None:
        self._line("loading the model")

    def _limited(self, tokens: int, wanted: int) -> None:
        self._line(f"--max-tokens {wanted}: the model has positions for {tokens} tokens, so no caption has more")

    def _caption(self, path: str, text: str, number: int, of: int, written: bool) -> None:
        self._line(f"{number} of {of}  {path}: {text}")

    def _mask(self, path: str, mask: str, share: float, number: int, of: int, written: bool) -> None:
        self._line(f"{number} of {of}  {path}: {share:.0%} of it, {mask}")

    def _failed(self, path: str, reason: str, number: int, of: int) -> None:
        self._line(f"{number} of {of}  {path}: failed: {reason}")

    def _end(self, written: int, failed: int, left: int, canceled: bool) -> None:
        text = f"{counted(written, 'file')} written" if written else "Nothing written"
        if failed:
            text += f", {failed} failed"
        if canceled:
            text += f", {left} left; start again to go on"
        self._line(f"{text}.")

    def _line(self, text: str) -> None:
        self._show(visible_line(text))
