"""Masks of clips whose frames have a mask each: videos, or folders of frames."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING

import numpy as np

from modules.config.counted import counted
from modules.data.Augmentation import NO_AUGMENTATION, Augmentation
from modules.data.clips import ROUNDED_FRAMES
from modules.data.conditions.references import is_alike
from modules.data.errors import ImageError
from modules.data.images import load_gray_on_black
from modules.data.masks import fit_mask, is_mask_clip
from modules.data.videos import frame_files, frame_path, read_frames, read_info, split_time

if TYPE_CHECKING:
    from PIL.Image import Image

    from modules.data.crops import SampleCrop


def mask_images(path: str, times: Sequence[float], folder_fps: float | None = None) -> Iterator[Image]:
    """The frames of a mask at these times, upright, in 8 bits. folder_fps: as in `read_frames`. Raises ImageError."""
    if os.path.isdir(path):
        yield from (load_gray_on_black(frame_path(path, time, folder_fps)) for time in times)
    else:
        yield from (frame.convert("L") for frame in read_frames(path, times))


def sample_masks(named: str, size: tuple[int, int], count: int, fps: float) -> Iterator[Image]:
    """The masks of a sample of `count` frames, in 8 bits.

    named: as SampleConfig.mask: an image, which holds for all of them, a video, from the time in its name on, or a
    folder of frames or these, one a line. size: of the source clip. Raises ImageError.
    """
    path, seconds = split_time(os.path.expanduser(named))
    lines = named.split("\n")
    masks: Iterator[Image]
    if len(lines) > 1 or os.path.isdir(path):
        files = (lines if len(lines) > 1 else frame_files(path))[:count]
        masks, lasts = map(load_gray_on_black, files), len(files)
    elif is_mask_clip(path):
        start = seconds or 0.0
        lasts = int((read_info(path).seconds - start) * fps + ROUNDED_FRAMES)
        masks = mask_images(path, [start + number / fps for number in range(count)])
    else:
        masks, lasts = repeat(load_gray_on_black(path), count), count
    if lasts < count:
        raise ImageError(path, f"this mask has {counted(max(lasts, 0), 'frame')}, and the video {count}")
    first = next(masks)
    if not is_alike(first.size, size):
        own = " x ".join(map(str, first.size))
        raise ImageError(path, f"this mask is {own} and the source clip {size[0]} x {size[1]}, of another aspect ratio")
    return chain([first], masks)


def mask_frames(
    path: str,
    times: Sequence[float],
    folder_fps: float | None,
    size: tuple[int, int],
    shape: tuple[int, int],
    augmentation: Augmentation = NO_AUGMENTATION,
    crop: SampleCrop | None = None,
) -> Iterator[np.ndarray]:
    """bool[1, H, W] of each frame, True where it is white, cropped and fitted like its clip.

    size: of the upright video before it is cropped. shape: (width, height) to fit it to. Raises ImageError.
    """
    for image in mask_images(path, times, folder_fps):
        yield fit_mask(image, size, *shape, augmentation, crop) >= 0.5
