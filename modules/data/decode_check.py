"""Finds the images that a run would leave out, before it does: by decoding them, without a model."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from modules.data.clips import clip_of
from modules.data.errors import ImageError
from modules.data.images import load_image
from modules.data.videos import is_video, read_frames

if TYPE_CHECKING:
    from modules.data.clips import Clip
    from modules.data.Dataset import Dataset

# Images, and frames of clips, that are decoded unless all are asked for: a minute or two with photographs.
MOST_DECODED = 2000
NUM_READERS = 8

# Decodes images; returns why some of them can't be, by path
Decode = Callable[[Sequence[str]], Mapping[str, str]]


def undecodable(paths: Sequence[str]) -> dict[str, str]:
    """Those of the images at `paths` that can't be decoded, with the reason."""

    def reason(path: str) -> str:
        try:
            load_image(path)
        except ImageError as error:
            return error.reason
        return ""

    with ThreadPoolExecutor(NUM_READERS) as readers:
        return {path: text for path, text in zip(paths, readers.map(reason, paths), strict=True) if text}


def decoded_samples(dataset: Dataset, most: int | None) -> list[int]:
    """The samples that `find_unusable` is to look at, the first view of each image: all of them, or about `most`.

    most: images, and frames of clips; None for no limit. Above, samples from all over the dataset stand for the rest.
    """
    samples = np.flatnonzero(dataset.num_views).tolist()
    clips = [clip_of(dataset, sample) for sample in samples]
    num_images = sum(1 if clip is None else clip.num_frames for clip in clips)
    if most is None or num_images <= most:
        return samples
    return samples[:: math.ceil(num_images / most)] if most else []


def find_unusable(dataset: Dataset, samples: Sequence[int], decode: Decode = undecodable) -> dict[int, str]:
    """Those of `samples` that caching would leave out, because an image, a clip or what belongs to it is damaged.

    Returns sample id -> reason. decode: of the images themselves.
    """
    stills = [sample for sample in samples if clip_of(dataset, sample) is None]
    of_image = decode(list(dict.fromkeys(dataset.paths[sample] for sample in stills)))
    found = {sample: of_image[dataset.paths[sample]] for sample in stills if dataset.paths[sample] in of_image}
    beside = {sample: dataset.files_of(sample) for sample in samples if sample not in found}
    files = {path: None for named in beside.values() for paths in named.values() for path in paths}
    of_file = undecodable([path for path in files if path not in of_image and not is_video(path)])
    for sample, named in beside.items():
        for name, paths in named.items():
            if broken := [path for path in paths if path in of_file]:
                found[sample] = f"its {name} {os.path.basename(broken[0])} can't be read: {of_file[broken[0]]}"
    clips = [sample for sample in samples if clip_of(dataset, sample) and sample not in found]
    with ThreadPoolExecutor(NUM_READERS) as readers:
        reasons = readers.map(lambda sample: _why_unusable(dataset, sample), clips)
        found |= {sample: reason for sample, reason in zip(clips, reasons, strict=True) if reason}
    return dict(sorted(found.items()))


def _why_unusable(dataset: Dataset, sample: int) -> str:
    """ "" if all frames of a clip can be read, and of the videos that belong to it."""
    clip = clip_of(dataset, sample)
    assert clip is not None  # images are decoded on their own
    if reason := _why_unreadable(dataset.paths[sample], clip, clip.folder_fps):
        return reason
    folder_fps = dataset.concepts[dataset.concept_index[sample]].frame_folders_fps
    for name, paths in dataset.files_of(sample).items():
        for path in filter(is_video, paths):
            if reason := _why_unreadable(path, clip, folder_fps):
                return f"its {name} {os.path.basename(path)} can't be read: {reason}"
    return ""


def _why_unreadable(path: str, clip: Clip, folder_fps: float | None) -> str:
    """ "" if a video has all frames at the times of the clip."""
    try:
        for _ in read_frames(path, clip.times, folder_fps):
            pass
    except ImageError as error:
        return error.reason
    return ""
