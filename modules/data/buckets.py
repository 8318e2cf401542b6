"""Aspect ratio bucketing: assigns each image a training shape, so that the images of a micro-batch can be stacked.

All shapes have about the same area, resolution x resolution, and differ in aspect ratio (width / height).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from modules.config.image_sizes import resolution_problem, step_problem
from modules.data.Augmentation import NO_AUGMENTATION, Augmentation
from modules.data.errors import DataError

if TYPE_CHECKING:
    from modules.config.problems import Problem

ENLARGED = 1.1  # images that are upscaled by more than this are reported


@dataclass(frozen=True, eq=False)
class Buckets:
    """The shapes in use, and the shape of each sample.

    shapes: (width, height) in pixels, sorted.
    index: int32[N], position in `shapes` for each sample id.
    num_frames: of each shape, which may then be in `shapes` several times; None without clips. An image with its layers
        counts like a clip.
    frames_per_token: as in Family, of the model that trains on clips.
    passes: of each shape, what its samples have in common, as in `ConditionData.passes`; None where all are alike.
    """

    shapes: list[tuple[int, int]]
    index: np.ndarray
    num_frames: list[int] | None = None
    frames_per_token: int = 1
    passes: list[str] | None = None

    def shape_of(self, sample: int) -> tuple[int, int]:
        """(width, height) of a sample in pixels."""
        return self.shapes[int(self.index[sample])]

    @property
    def frames(self) -> list[int]:
        """The number of frames of each shape."""
        return self.num_frames or [1] * len(self.shapes)

    def divided(self, frames: Sequence[int], frames_per_token: int, passes: Sequence[str] = ()) -> Buckets:
        """The buckets divided by number of frames, so that the clips of a micro-batch can be stacked.

        frames: of each sample. passes: likewise, as in `ConditionData.passes`.
        """
        parts = enumerate(zip(frames, passes or [""] * len(frames), strict=True))
        keys = [(*self.shape_of(sample), *of_sample) for sample, of_sample in parts]
        used = sorted(set(keys))
        position = {key: number for number, key in enumerate(used)}
        index = np.array([position[key] for key in keys], np.int32)
        apart = [key[3] for key in used] if passes else None
        return Buckets([key[:2] for key in used], index, [key[2] for key in used], frames_per_token, apart)

    @property
    def costs(self) -> list[int]:
        """The time that a sample of each shape takes, relative to others: its pixels, of one frame per latent frame."""
        pairs = zip(self.shapes, self.frames, strict=True)
        return [width * height * ((count - 1) // self.frames_per_token + 1) for (width, height), count in pairs]

    @property
    def names(self) -> list[str]:
        """Each shape as users see it: "512x768", with clips "512x768x17", or "512x768x17 with sound"."""
        parts = zip(self.shapes, self.frames, self.passes or [""] * len(self.shapes), strict=True)
        return [
            f"{width}x{height}" + (f"x{count}" if count > 1 else "") + (f" {kind}" if kind else "")
            for (width, height), count, kind in parts
        ]


class CropBox(NamedTuple):
    """How an image is fitted to its bucket: resized to `size` (w, h), then cropped to `box` (l, t, r, b)."""

    size: tuple[int, int]
    box: tuple[int, int, int, int]


def assign_buckets(
    widths: np.ndarray,
    heights: np.ndarray,
    resolution: int | np.ndarray,
    step: int,
    max_aspect: float,
    bucketing: bool,
    upscale: bool = True,
    max_side: int | None = None,
    fixed_shape: tuple[int, int] | None = None,
) -> Buckets:
    """Assigns each image the shape with the nearest aspect ratio.

    widths, heights: int[N], pixels, after applying the EXIF orientation.
    resolution: one for all, or int[N].
    Other arguments as for `bucket_shapes`; without `bucketing` every image is trained as a square, or in the
    `fixed_shape` (width, height).
    upscale: if not, and with `bucketing`, an image that is smaller than its shape gets its own size instead, rounded
    down to multiples of `step`, at least one, and cropped to `max_aspect`.
    Nearness is measured by ratio: the border between two shapes is the geometric mean of their aspects.
    Raises DataError like `bucket_shapes`.
    """
    if not bucketing and fixed_shape:
        return Buckets([fixed_shape], np.zeros(len(widths), np.int32))
    if isinstance(resolution, np.ndarray):
        return _of_each_resolution(widths, heights, resolution, step, max_aspect, bucketing, upscale, max_side)
    if not bucketing:
        return Buckets([(resolution, resolution)], np.zeros(len(widths), np.int32))
    shapes = bucket_shapes(resolution, step, max_aspect, max_side)
    # *, / and sqrt are rounded identically on all platforms (IEEE 754), so all ranks agree; log is not.
    aspects = np.array([width / height for width, height in shapes])
    borders = np.sqrt(aspects[:-1] * aspects[1:])
    nearest = np.searchsorted(borders, np.asarray(widths) / np.asarray(heights))
    if not upscale:
        own = _not_upscaled(np.array(shapes)[nearest], widths, heights, resolution, step, max_aspect, max_side)
        return _merged(own)
    used, index = np.unique(nearest, return_inverse=True)
    # `shapes` is sorted by aspect, which is not the order of widths, so the shapes in use are sorted again.
    order = sorted(range(len(used)), key=lambda i: shapes[used[i]])
    position = np.empty(len(used), np.int32)
    position[order] = np.arange(len(used), dtype=np.int32)
    return Buckets([shapes[used[i]] for i in order], position[index.reshape(-1)])


def are_enlarged(buckets: Buckets, widths: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """bool[N]: which images are upscaled so much that they are trained blurred. widths, heights: as of
    `assign_buckets`."""
    shapes = np.array(buckets.shapes)[buckets.index]
    return np.maximum(shapes[:, 0] / widths, shapes[:, 1] / heights) > ENLARGED


def bucket_shapes(resolution: int, step: int, max_aspect: float, max_side: int | None = None) -> list[tuple[int, int]]:
    """All training shapes (width, height), sorted by aspect ratio.

    The longer side takes every multiple of `step`; the shorter side is the largest multiple that keeps the area within
    resolution x resolution, so that no bucket needs more memory than the square. Shapes beyond `max_aspect` (or
    1 / max_aspect), or with a side longer than `max_side`, are excluded, but never the square. Of several shapes with
    the same aspect, the largest is kept.
    Raises DataError if `step` is larger than `resolution`.
    """
    _refuse(step_problem(step, resolution))
    square = resolution // step * step
    shapes = {(square, square)}
    longest = int(resolution * math.sqrt(max_aspect))
    if max_side is not None:
        longest = min(longest, max_side)
    for longer in range(square + step, longest + 1, step):
        shorter = resolution**2 // longer // step * step
        if longer <= max_aspect * shorter:
            shapes |= {(longer, shorter), (shorter, longer)}
    largest: dict[tuple[int, int], tuple[int, int]] = {}
    for width, height in sorted(shapes):  # of equal aspects, the larger shape comes last and wins
        divisor = math.gcd(width, height)
        largest[width // divisor, height // divisor] = (width, height)
    return sorted(largest.values(), key=lambda shape: shape[0] / shape[1])


def check_resolution(
    resolution: int, step: int, align: int, setting: str = "data.resolution", family: str = "the model"
) -> None:
    """Raises DataError for sizes that the model can't process, naming the nearest valid ones.

    resolution: the value of `setting`, in pixels.
    step: data.bucket_step, in pixels; must not be larger than `resolution`.
    align: every side must be a multiple of this many pixels (the family's; 8 for SD 1.5).
    """
    _refuse(resolution_problem(resolution, step, align, setting, family))


def crop_box(
    width: int, height: int, bucket_w: int, bucket_h: int, augmentation: Augmentation = NO_AUGMENTATION
) -> CropBox:
    """The smallest size with the image's aspect ratio that covers the bucket, and the bucket's box in it, in pixels.

    The bucket is centered, or placed at the augmentation's crop position. For a rotated crop, the size leaves room for
    the corners.
    """
    margin_x, margin_y = rotation_margins(bucket_w, bucket_h, augmentation.degrees)
    outer_w, outer_h = bucket_w + 2 * margin_x, bucket_h + 2 * margin_y
    if outer_w * height >= outer_h * width:
        size = (outer_w, max(outer_h, _divide_rounded(height * outer_w, width)))
    else:
        size = (max(outer_w, _divide_rounded(width * outer_h, height)), outer_h)
    spare_x, spare_y = size[0] - outer_w, size[1] - outer_h
    left, top = spare_x // 2, spare_y // 2
    if augmentation.crop_position is not None:
        x, y = augmentation.crop_position
        left, top = int(x * (spare_x + 1)), int(y * (spare_y + 1))
    left, top = left + margin_x, top + margin_y
    return CropBox(size, (left, top, left + bucket_w, top + bucket_h))


def rotation_margins(bucket_w: int, bucket_h: int, degrees: float) -> tuple[int, int]:
    """The horizontal and vertical margin, in pixels, that a crop needs to be rotated without empty corners."""
    if not degrees:
        return 0, 0
    cos, sin = abs(math.cos(math.radians(degrees))), abs(math.sin(math.radians(degrees)))
    wide, high = bucket_w * cos + bucket_h * sin, bucket_w * sin + bucket_h * cos
    # one extra pixel for interpolation; max, because a slightly rotated box may be less high than the upright one
    return max(0, math.ceil((wide - bucket_w) / 2)) + 1, max(0, math.ceil((high - bucket_h) / 2)) + 1


def _refuse(problem: Problem | None) -> None:
    if problem is not None:
        raise DataError.of(problem)


def _not_upscaled(
    shapes: np.ndarray,
    widths: np.ndarray,
    heights: np.ndarray,
    resolution: int,
    step: int,
    max_aspect: float,
    max_side: int | None,
) -> np.ndarray:
    """`shapes`, int[N, 2], with the own size of each image that is smaller than its shape."""
    sizes = np.stack([widths, heights], axis=1).astype(np.int64)
    own = np.maximum(step, sizes // step * step)
    longest = (max_aspect * own.min(axis=1) / step).astype(np.int64) * step
    if max_side is not None:
        longest = np.minimum(longest, max_side // step * step)
    own = np.minimum(own, np.maximum(step, longest)[:, None])
    fits = own.prod(axis=1) <= resolution**2  # else enlarging the image a little is what keeps the area
    is_smaller = (shapes > sizes).any(axis=1)
    return np.where((is_smaller & fits)[:, None], own, shapes)


def _of_each_resolution(
    widths: np.ndarray,
    heights: np.ndarray,
    resolution: np.ndarray,
    step: int,
    max_aspect: float,
    bucketing: bool,
    upscale: bool,
    max_side: int | None,
) -> Buckets:
    shape_of = np.empty((len(resolution), 2), np.int32)
    for value in np.unique(resolution).tolist():
        rows = resolution == value
        buckets = assign_buckets(widths[rows], heights[rows], value, step, max_aspect, bucketing, upscale, max_side)
        shape_of[rows] = np.array(buckets.shapes, np.int32)[buckets.index]
    return _merged(shape_of)


def _merged(shape_of: np.ndarray) -> Buckets:
    """The buckets of images with these shapes, int[N, 2]; equal shapes are one bucket."""
    shapes, index = np.unique(shape_of, axis=0, return_inverse=True)
    return Buckets([tuple(shape) for shape in shapes.tolist()], index.reshape(-1).astype(np.int32))


def _divide_rounded(numerator: int, denominator: int) -> int:
    """Integer division, rounding half up; exact, unlike round() of a float for large images."""
    return (2 * numerator + denominator) // (2 * denominator)
