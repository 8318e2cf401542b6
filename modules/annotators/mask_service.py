"""Masks on demand: a process that keeps its model and answers one request after another, for the window.

Each request is a line of JSON with `image`, and whatever of `id`, `prompt`, `clicks` ([[x, y, true or false], ...]),
`threshold` (null for a soft mask), `invert`, `grow` and `feather` it needs, as for Edges and MaskHint. The answer is an
event "mask" with `mask`, the path of a PNG in a folder for what is tried out, or "failed" with the reason, and the
request's `id`. Nothing is written into the dataset.
"""

from __future__ import annotations

import json
import os
import queue
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from modules.annotators.mask_edges import MAX_PIXELS, Edges
from modules.annotators.mask_run import MaskSource
from modules.annotators.Masker import Click, MaskHint
from modules.annotators.reports import Report
from modules.config.errors import UserError
from modules.config.installation import docs_page

POLL_SECONDS = 0.1
NUM_KEPT = 8  # answers whose files stay


class MaskService:
    """Answers requests in the order in which they come. folder: where its masks go; it must exist."""

    def __init__(self, source: MaskSource, folder: Path, report: Report):
        self._source, self._folder, self._report = source, folder, report
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._number = 0
        self._seen: tuple[str, Any] = ("", None)

    def hear(self, line: str) -> None:
        """Add a request; from any thread."""
        self._waiting.put(line)

    def serve(self, is_canceled: Callable[[], bool]) -> None:
        """Answer requests until the work is canceled and none is waiting."""
        self._report("ready")
        while True:
            was_canceled = is_canceled()  # before the look, so that what came before it is answered
            try:
                line = self._waiting.get(timeout=POLL_SECONDS)
            except queue.Empty:
                if was_canceled:
                    return
                continue
            self._answer(line)

    def _answer(self, line: str) -> None:
        name: Any = None
        try:
            request = _request(line)
            name = request.get("id")
            image, hint, edges = _wanted(request)
            mask = self._source.mask(self._loaded(image), hint, edges)
            path = self._folder / f"{self._number % NUM_KEPT}.png"
            mask.save(path)
        except UserError as error:
            self._report("failed", path=_shown_path(line), reason=str(error), id=name)
            return
        self._number += 1
        self._report("mask", path=image, mask=str(path), id=name, written=False)

    def _loaded(self, path: str) -> Any:
        """Kept for the next request, which is mostly about the same image. Raises ImageError."""
        key = _identity(path)
        if self._seen[0] != key:
            self._seen = (key, self._source.load(path))
        return self._seen[1]


def _request(line: str) -> Mapping[str, Any]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict) or not isinstance(request.get("image"), str):
        raise UserError('A request is a line of JSON such as {"image": "a.png", "clicks": [[120, 80, true]]}.')
    return request


def _wanted(request: Mapping[str, Any]) -> tuple[str, MaskHint, Edges]:
    """Raises UserError."""
    image = request["image"]
    try:
        clicks = tuple(Click(float(x), float(y), bool(inside)) for x, y, inside in request.get("clicks", ()))
        values = {one.name: request[one.name] for one in fields(Edges) if one.name in request}
        edges = checked_edges(Edges(**values))
    except (TypeError, ValueError) as error:
        raise UserError(f"The request for {image} can't be read ({error}): see {docs_page('dataset')}.") from error
    return image, MaskHint(str(request.get("prompt", "")), clicks, _identity(image)), edges


def checked_edges(edges: Edges) -> Edges:
    """Raises ValueError for values that no mask can have."""
    if edges.threshold is not None and not 0 <= edges.threshold <= 1:
        raise ValueError(f"threshold {edges.threshold} is not from 0 to 1")
    if abs(int(edges.grow)) > MAX_PIXELS or not 0 <= int(edges.feather) <= MAX_PIXELS:
        raise ValueError(f"grow and feather are at most {MAX_PIXELS} pixels")
    return Edges(edges.threshold, bool(edges.invert), int(edges.grow), int(edges.feather))


def _identity(path: str) -> str:
    """What tells an image from any other, and from what it was before."""
    try:
        status = os.stat(path)
    except OSError:
        return path
    return f"{path} {status.st_mtime_ns} {status.st_size}"


def _shown_path(line: str) -> str:
    try:
        return str(_request(line)["image"])
    except UserError:
        return ""
