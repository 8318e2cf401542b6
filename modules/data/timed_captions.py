"""Captions of parts of a video, which start with a time in minutes and seconds:

    a cat in a garden
    [0:00 - 0:03] the cat sleeps
    [0:03 - 0:06.5] it stretches and walks away

They are times instead of numbers of clips, so that they stay right when `data.frames` changes.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

# How much of a clip a caption must be about. Ends that are a little off then don't count for the clip beside.
LEAST_SHARE = 0.5

_TIME = r"(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)"
STAMP = re.compile(rf"\[\s*{_TIME}\s*[-–]\s*{_TIME}\s*\]")


class Span(NamedTuple):
    """A part of a video, in seconds from its first frame."""

    start: float
    end: float

    def __str__(self) -> str:
        return f"[{_minutes(self.start)} - {_minutes(self.end)}]"


class CaptionPart(NamedTuple):
    """span: None for a caption of the whole video."""

    text: str
    span: Span | None


@lru_cache(maxsize=64)  # asked for by each clip of a video
def caption_parts(captions: tuple[str, ...]) -> tuple[CaptionPart, ...]:
    """The captions with those of parts on their own, in order."""
    parts = []
    for caption in captions:
        text, *others = STAMP.split(caption)
        if text or not others:
            parts.append(CaptionPart(text.strip(), None))
        for at in range(0, len(others), 7):
            span = Span(_seconds(*others[at : at + 3]), _seconds(*others[at + 3 : at + 6]))
            parts.append(CaptionPart(others[at + 6].strip(), span))
    return tuple(parts)


def captions_at(captions: tuple[str, ...], span: Span) -> tuple[str, ...]:
    """The captions of a clip: those of its own time, else those of the whole video, else ("",)."""
    parts = caption_parts(captions)
    own = dict.fromkeys(part.text for part in parts if part.text and is_about(part, span))
    return tuple(own) or tuple(part.text for part in parts if part.span is None) or ("",)


def is_about(part: CaptionPart, clip: Span) -> bool:
    """Whether it is a caption of the part of the video that a clip shows."""
    if part.span is None:
        return False
    shared = min(part.span.end, clip.end) - max(part.span.start, clip.start)
    return shared >= LEAST_SHARE * (clip.end - clip.start)


def _seconds(hours: str | None, minutes: str, seconds: str) -> float:
    return 3600 * int(hours or 0) + 60 * int(minutes) + float(seconds)


def _minutes(seconds: float) -> str:
    hundredths = round(100 * seconds)
    minutes, hundredths = divmod(hundredths, 6000)
    return f"{minutes}:{hundredths // 100:02}" + f"{hundredths % 100 / 100:.2f}"[1:].rstrip("0").rstrip(".")
