"""Reads the sound of videos, with PyAV, which is imported only when one is opened."""

from __future__ import annotations

import os

import numpy as np

from modules.data.videos import opened

# Peaks below the smallest step of 16 bits: nothing can be heard.
_SILENCE = 2.0**-15


def read_sound(path: str, start: float, seconds: float, rate: int) -> np.ndarray | None:
    """The sound of a part of a video as float32[2, samples] in [-1, 1], in stereo; None where there is none to hear.

    start: seconds from the first frame. rate: samples per second, to which it is resampled. What a file's sound lacks
    at either end is silent. Raises ImageError if the file is damaged.
    """
    if os.path.isdir(path):
        return None
    count = round(seconds * rate)
    found = np.zeros((2, count), np.float32)
    with opened(path) as (container, video):
        if not container.streams.audio:
            return None
        from av import AudioResampler

        stream = container.streams.audio[0]
        begin = start + float((video.start_time or 0) * (video.time_base or 0))
        resampler = AudioResampler(format="fltp", layout="stereo", rate=rate)
        container.seek(max(0, int((begin - 1) * 1_000_000)), backward=True)
        place: int | None = None  # of the next sample, from the part's first one
        for frame in container.decode(stream):
            if frame.time is None or (place is None and frame.time + frame.samples / frame.sample_rate < begin):
                continue
            if place is None:
                place = round((frame.time - begin) * rate)
            for part in resampler.resample(frame):
                place = _put(found, part.to_ndarray(), place)
            if place >= count:
                break
        if place is not None and place < count:
            for part in resampler.resample(None):
                place = _put(found, part.to_ndarray(), place)
    return found if np.abs(found).max() >= _SILENCE else None


def _put(found: np.ndarray, samples: np.ndarray, place: int) -> int:
    """Copies what of the samples falls into `found`; returns the place of the next one."""
    first, last = max(0, place), min(found.shape[1], place + samples.shape[1])
    if first < last:
        found[:, first:last] = samples[:, first - place : last - place]
    return place + samples.shape[1]
