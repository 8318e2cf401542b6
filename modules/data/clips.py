"""The clips of a dataset: which frames of its videos are trained, and their pixels."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from modules.config.clips import clip_length
from modules.config.counted import counted
from modules.data.Dataset import Column
from modules.data.draws import uniform
from modules.data.images import adjust_colors, fit_image, to_array
from modules.data.timed_captions import Span
from modules.data.videos import VideoInfo, read_frames

if TYPE_CHECKING:
    from PIL.Image import Image

    from modules.config.clips import ClipRule
    from modules.data.Augmentation import Augmentation
    from modules.data.crops import SampleCrop
    from modules.data.Dataset import Dataset

CLIP = "clip"  # of the column of a dataset: the Clip of each sample, None for an image
# A frame that begins this long before the end counts, in frames: durations in headers are rounded.
ROUNDED_FRAMES = 0.05


@dataclass(frozen=True)
class Clip:
    """`num_frames` frames of a video, from `start` seconds on, at `fps`.

    folder_fps: as in VideoInfo.
    """

    start: float
    num_frames: int
    fps: float
    # outside of the repr, from which backups know whether the samples are still the same
    folder_fps: float | None = field(default=None, repr=False)

    @property
    def span(self) -> Span:
        return Span(self.start, self.start + self.num_frames / self.fps)

    @property
    def times(self) -> list[float]:
        return [self.start + number / self.fps for number in range(self.num_frames)]


def with_clips(dataset: Dataset, rule: ClipRule | None) -> Dataset:
    """A dataset without views in which each video is one sample for each of its clips; images stay as they are."""
    if rule is None:
        return dataset
    clips: list[Clip | None] = []
    kept: list[int] = []
    for sample, path in enumerate(dataset.paths):
        info = dataset.videos.get(path)
        of_sample = [None] if info is None else list(clips_of(info, rule, os.path.basename(path)))
        clips += of_sample
        kept += [sample] * len(of_sample)
    return dataset.take(kept).with_column(CLIP, Column(clips, identity=lambda clip: [repr(clip)]))


def clip_of(dataset: Dataset, sample: int) -> Clip | None:
    """The clip of a sample; None if it is an image."""
    return dataset.value(CLIP, sample)


def clip_frames(
    path: str, clip: Clip, shape: tuple[int, int], augmentation: Augmentation, crop: SampleCrop | None = None
) -> Generator[np.ndarray]:
    """The frames as float32[3, H, W] in [-1, 1], each cropped, fitted and augmented alike, before the next one is
    decoded.

    shape: (width, height). Raises ImageError.
    """
    for frame in read_frames(path, clip.times, clip.folder_fps):
        yield frame_pixels(frame, shape, augmentation, crop)


def frame_pixels(
    frame: Image, shape: tuple[int, int], augmentation: Augmentation, crop: SampleCrop | None = None
) -> np.ndarray:
    """One of `clip_frames`. frame: upright and whole."""
    part = frame if crop is None else crop.of(frame)
    return to_array(adjust_colors(fit_image(part, *shape, augmentation), augmentation))


def load_clip(
    path: str, clip: Clip, shape: tuple[int, int], augmentation: Augmentation, crop: SampleCrop | None = None
) -> np.ndarray:
    """float32[3, F, H, W] of `clip_frames`, or [3, H, W] of a single frame."""
    frames = list(clip_frames(path, clip, shape, augmentation, crop))
    return frames[0] if len(frames) == 1 else np.stack(frames, axis=1)


def describe_clips(dataset: Dataset) -> str | None:
    """How many clips there are of how many videos; None without videos."""
    return f"{num_clips(dataset)} of {counted(len(dataset.videos), 'video')}" if dataset.videos else None


def num_clips(dataset: Dataset) -> int:
    """The number of clips, each counted once however many views it has."""
    return sum(clip_of(dataset, sample) is not None for sample in dataset.images_of(range(len(dataset))))


def clips_of(info: VideoInfo, rule: ClipRule, name: str) -> Iterator[Clip]:
    """The clips of a video. name: of the file, so that a moved folder gives the same random starts."""
    available = int(info.seconds * rule.fps + ROUNDED_FRAMES)
    num_frames = clip_length(min(available, rule.frames), rule.step, rule.rest)
    spare = max(0, available - num_frames)
    starts = [spare // 2 if rule.selection == "middle" else 0]
    if rule.selection == "random":
        starts = [int(uniform(rule.seed, name, "clip") * (spare + 1))]
    if rule.selection == "chunks" and num_frames == rule.frames:  # else the video is shorter than one clip
        starts = list(range(0, spare + 1, num_frames))
    for first in starts:
        yield Clip(first / rule.fps, num_frames, rule.fps, info.folder_fps)
