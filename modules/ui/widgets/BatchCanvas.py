"""A canvas whose items can be created together, in a single call of Tk."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Iterator
from contextlib import contextmanager


class BatchCanvas(tk.Canvas):
    """Between calls of Tk a thread that computes may take the GIL, for a millisecond each time: a screen of thumbnails,
    some 300 items, would take up to 0.3 s while images are decoded.

    tag: given to all items that are created, unless it is "".
    """

    tag = ""
    _batch: list[tuple] | None = None

    @contextmanager
    def together(self) -> Iterator[None]:
        """Create the items of the block at its end. Their ids are not known: name them by `tag`."""
        if self._batch is not None:
            yield
            return
        self._batch = []
        try:
            yield
            self.flush()
        finally:
            self._batch, self.tag = None, ""

    def flush(self) -> None:
        """Create now what has been held back."""
        if self._batch:
            items, self._batch = self._batch, []
            self.tk.call("foreach", "chorus_item", items, f"{self._w} create {{*}}$chorus_item")  # type: ignore[attr-defined]

    def create_text_now(self, *coords: float, **options: object) -> int:
        """As `create_text`, but at once, for what depends on how large it is."""
        self.flush()
        batch, self._batch = self._batch, None
        try:
            return self._create("text", coords, options)
        finally:
            self._batch = batch

    def _create(self, kind: str, coords: tuple, options: dict) -> int:
        """All of Canvas's methods that create an item end here."""
        if self.tag:
            options = {**options, "tags": self.tag}
        if self._batch is None:
            return super()._create(kind, coords, options)  # type: ignore[misc]
        given = ((f"-{name}", value) for name, value in options.items() if value is not None)
        self._batch.append((kind, *coords, *(part for pair in given for part in pair)))
        return 0
