"""A mask that is painted: brush, areas and edges, with undo. Uses numpy and Pillow only.

White (255) is learned, or painted by the model for inpainting; black (0) is not. All coordinates are pixels of the
mask, which has the size of the upright image.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

Box = tuple[int, int, int, int]
"""Left, top, right, bottom; the last two are outside."""

WHITE, BLACK = 255, 0
MAX_UNDO_BYTES = 64 << 20
MAX_DIAMETER = 1000  # of a brush, in pixels
FASTEST = 1  # zlib's level: a mask is mostly flat, and 12 million pixels take 40 ms


@dataclass(frozen=True)
class Brush:
    """diameter: in pixels. softness: the part of the radius over which its edge fades, 0 to 1. erases: paints black."""

    diameter: int
    softness: float = 0.0
    erases: bool = False


@dataclass(frozen=True)
class _Edit:
    """What a step back or forward puts into a box. before, after: names of the states of the mask around it."""

    box: Box
    content: bytes
    before: int
    after: int


class MaskPainting:
    """values: uint8[H, W], taken over and changed in place. Not for several threads at once."""

    def __init__(self, values: np.ndarray):
        self.values = np.ascontiguousarray(values, np.uint8)
        self._done: list[_Edit] = []
        self._undone: list[_Edit] = []
        self._state = self._saved = self._newest = 0
        self._stroke: tuple[Brush, np.ndarray, Box | None, tuple[float, float] | None] | None = None

    @property
    def size(self) -> tuple[int, int]:
        height, width = self.values.shape
        return width, height

    @property
    def whole(self) -> Box:
        return (0, 0, *self.size)

    @property
    def is_changed(self) -> bool:
        """Whether it differs from what was saved last."""
        return self._state != self._saved or (self._stroke is not None and self._stroke[2] is not None)

    @property
    def can_undo(self) -> bool:
        return bool(self._done)

    @property
    def can_redo(self) -> bool:
        return bool(self._undone)

    @property
    def undo_bytes(self) -> int:
        """Memory that undo and redo take."""
        return sum(len(edit.content) for edit in (*self._done, *self._undone))

    def mark_saved(self) -> None:
        self.end_stroke()
        self._saved = self._state

    def mark_unsaved(self) -> None:
        """What was to be saved could not be."""
        self._saved = -1

    # --- strokes -----------------------------------------------------------------------------------------------------

    def begin_stroke(self, brush: Brush, x: float, y: float) -> Box:
        """Put the brush down. Returns what has changed."""
        self.end_stroke()
        self._stroke = brush, self.values.copy(), None, None
        return self.stroke_to(x, y)

    def stroke_to(self, x: float, y: float) -> Box:
        """Draw a straight line to a point. Returns what has changed."""
        if self._stroke is None:
            raise ValueError("no stroke has begun")
        brush, before, box, last = self._stroke
        changed: Box | None = None
        for point_x, point_y in _points_between(last or (x, y), (x, y), brush.diameter):
            changed = united(changed, self._stamp(brush, point_x, point_y))
        if changed is not None and not is_empty(changed):
            box = united(box, changed)
        self._stroke = brush, before, box, (x, y)
        return changed or (0, 0, 0, 0)

    def end_stroke(self) -> None:
        """Lift the brush: the stroke is one step to undo."""
        if self._stroke is None:
            return
        _, before, box, _ = self._stroke
        self._stroke = None
        if box is not None:
            self._remember(box, before[_slices(box)])

    def _stamp(self, brush: Brush, x: float, y: float) -> Box:
        disc = _disc(brush.diameter, brush.softness)
        half = disc.shape[0] // 2
        left, top = int(np.floor(x)) - half, int(np.floor(y)) - half
        box = self.inside((left, top, left + disc.shape[1], top + disc.shape[0]))
        if is_empty(box):
            return box
        part = disc[box[1] - top : box[3] - top, box[0] - left : box[2] - left]
        there = self.values[_slices(box)]
        # by the larger of both, not their sum: going over the same place twice leaves soft edges as they are
        if brush.erases:
            np.minimum(there, WHITE - part, out=there)
        else:
            np.maximum(there, part, out=there)
        return box

    # --- areas and edges ---------------------------------------------------------------------------------------------

    def fill(self, region: np.ndarray, value: int = WHITE) -> Box:
        """Fill where `region`, bool[H, W], is true. Returns what has changed."""
        with self._changing(self.whole):
            self.values[region] = value
        return self.whole

    def fill_rectangle(self, start: tuple[float, float], end: tuple[float, float], value: int = WHITE) -> Box:
        """Fill between two corners, each of which is a point within a pixel that belongs to it."""
        (left, right), (top, bottom) = (sorted(map(int, map(np.floor, pair))) for pair in zip(start, end, strict=True))
        box = self.inside((left, top, right + 1, bottom + 1))
        if not is_empty(box):
            with self._changing(box):
                self.values[_slices(box)] = value
        return box

    def fill_polygon(self, corners: Sequence[tuple[float, float]], value: int = WHITE) -> Box:
        """Fill a polygon with at least three corners."""
        if len(corners) < 3:
            raise ValueError("a polygon has at least three corners")
        xs, ys = zip(*corners, strict=True)
        box = self.inside((int(min(xs)), int(min(ys)), int(max(xs)) + 2, int(max(ys)) + 2))
        if not is_empty(box):
            area = Image.new("1", (box[2] - box[0], box[3] - box[1]))
            moved = [(int(np.floor(x)) - box[0], int(np.floor(y)) - box[1]) for x, y in corners]
            ImageDraw.Draw(area).polygon(moved, fill=1, outline=1)
            with self._changing(box):
                self.values[_slices(box)][np.asarray(area)] = value
        return box

    def fill_all(self, value: int) -> Box:
        with self._changing(self.whole):
            self.values[:] = value
        return self.whole

    def invert(self) -> Box:
        with self._changing(self.whole):
            np.subtract(WHITE, self.values, out=self.values)
        return self.whole

    def feather(self, pixels: int) -> Box:
        """Let hard edges fade over so many pixels to either side."""
        with self._changing(self.whole):
            # a box of this radius goes from black to white over its width
            self.values[:] = np.asarray(Image.fromarray(self.values).filter(ImageFilter.BoxBlur(pixels)))
        return self.whole

    def replace(self, values: np.ndarray) -> Box:
        """Another mask of the same size in its place, as one step to undo."""
        if values.shape != self.values.shape:
            raise ValueError(f"a mask of {values.shape} for one of {self.values.shape}")
        with self._changing(self.whole):
            self.values[:] = values
        return self.whole

    # --- undo --------------------------------------------------------------------------------------------------------

    def undo(self) -> Box | None:
        """Take back the newest step. Returns what has changed; None if there is nothing to undo."""
        self.end_stroke()
        return self._step(self._done, self._undone, is_back=True)

    def redo(self) -> Box | None:
        """Make again what `undo` took back."""
        self.end_stroke()
        return self._step(self._undone, self._done, is_back=False)

    def _step(self, source: list[_Edit], target: list[_Edit], is_back: bool) -> Box | None:
        if not source:
            return None
        edit = source.pop()
        there = self.values[_slices(edit.box)]
        target.append(_Edit(edit.box, zlib.compress(there.tobytes(), FASTEST), edit.before, edit.after))
        there[:] = np.frombuffer(zlib.decompress(edit.content), np.uint8).reshape(there.shape)
        self._state = edit.before if is_back else edit.after
        return edit.box

    @contextmanager
    def _changing(self, box: Box) -> Iterator[None]:
        self.end_stroke()
        before = self.values[_slices(box)].copy()
        yield
        self._remember(box, before)

    def _remember(self, box: Box, before: np.ndarray) -> None:
        """Keep what was in a box, or in the part of it that has changed."""
        changed = before != self.values[_slices(box)]
        rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        if not len(rows):
            return
        top, bottom, left, right = int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1
        content = zlib.compress(before[top:bottom, left:right].tobytes(), FASTEST)
        own_box = box[0] + left, box[1] + top, box[0] + right, box[1] + bottom
        self._newest += 1
        self._done.append(_Edit(own_box, content, self._state, self._newest))
        self._state = self._newest
        self._undone.clear()
        while len(self._done) > 1 and self.undo_bytes > MAX_UNDO_BYTES:
            del self._done[0]

    def inside(self, box: Box) -> Box:
        """The part of a box that lies in the mask."""
        width, height = self.size
        left, top = min(max(0, box[0]), width), min(max(0, box[1]), height)
        return left, top, max(left, min(box[2], width)), max(top, min(box[3], height))


def united(one: Box | None, other: Box) -> Box:
    """The smallest box around two boxes; an empty one does not count."""
    if one is None or is_empty(one):
        return other
    if is_empty(other):
        return one
    return min(one[0], other[0]), min(one[1], other[1]), max(one[2], other[2]), max(one[3], other[3])


def is_empty(box: Box) -> bool:
    return box[2] <= box[0] or box[3] <= box[1]


def _slices(box: Box) -> tuple[slice, slice]:
    return slice(box[1], box[3]), slice(box[0], box[2])


@lru_cache(4)
def _disc(diameter: int, softness: float) -> np.ndarray:
    """What one touch of a brush paints: uint8[side, side], of which the middle pixel is the touched one."""
    radius = min(max(1, diameter), MAX_DIAMETER) / 2
    steps = np.arange(-int(np.ceil(radius)), int(np.ceil(radius)) + 1, dtype=np.float32)
    distance = np.hypot(steps[:, None], steps[None])
    edge = max(1.0, radius * softness)
    disc = np.rint(((radius + 0.5 - distance) / edge).clip(0, 1) * WHITE).astype(np.uint8)
    disc.flags.writeable = False  # it is shared by all strokes
    return disc


def _points_between(
    start: tuple[float, float], end: tuple[float, float], diameter: int
) -> Iterator[tuple[float, float]]:
    """Where a brush touches on the way from a point, which it has touched, to another one."""
    length = float(np.hypot(end[0] - start[0], end[1] - start[1]))
    spacing = max(1.0, float(np.sqrt(diameter)))  # discs so near to each other leave notches of an eighth of a pixel
    count = max(1, int(np.ceil(length / spacing)))
    for number in range(1, count + 1):
        share = number / count
        yield start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share
