"""Divides videos into pieces by scene and length, or picks frames of them as images: always as new files.

Pieces are encoded anew, because only then do they begin and end at the frame that is meant. They have a constant frame
rate and look as training sees them: upright, with square pixels and in the colors of SDR. They keep the sound, for
models that learn it, unless they are so long that no clip is made of the whole of them.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from modules.config.atomic_file import remove
from modules.curation.copy_dataset import check_new_folder
from modules.curation.measures import measure_image
from modules.data.captions import own_captions, path_in_concept
from modules.data.ClipWithAudio import Audio
from modules.data.concepts import read_tables, scan
from modules.data.errors import DataError, ImageError
from modules.data.sounds import read_sound
from modules.data.timed_captions import Span, captions_at
from modules.data.videos import glance_frames, read_frames, write_mp4
from modules.session.atomic import new_folder

if TYPE_CHECKING:
    from PIL.Image import Image

    from modules.config.ConceptConfig import ConceptConfig
    from modules.data.Dataset import Dataset

AUDIO_RATE = 48_000  # samples per second
MOST_AUDIO_SECONDS = 600  # of a piece, whose sound is in memory as a whole: 230 MB
# The mean difference between two frames, of 255, from which a cut is possible: cuts of films have 25 to 90, and fast
# camera moves up to 30, which their neighbors share.
CUT = 20.0
CUT_TO_NEIGHBORS = 3.0  # how much more that must be than the median of the differences around it
_AROUND = 6  # differences on each side
_LOOKS_A_SECOND = 4.0  # among which the sharpest frame of an interval is chosen


@dataclass(frozen=True)
class SplitRule:
    """How videos are divided.

    by_scene, most_seconds, least_seconds: as for `pieces_of`. frame_seconds: write the sharpest frame of each interval
    of this length instead of pieces; None for pieces.
    """

    by_scene: bool = False
    most_seconds: float | None = None
    least_seconds: float = 0.5
    frame_seconds: float | None = None


@dataclass(frozen=True)
class SplitVideos:
    """num_videos: that were divided. num_written: pieces or frames. unreadable: (path, reason) of videos that were not,
    and of images of the concept that can't be read."""

    folder: str
    num_videos: int
    num_written: int
    unreadable: list[tuple[str, str]]


@dataclass(frozen=True)
class FoundPiece:
    """A piece of the video at `path`, or a picked frame, by its span in seconds. image: its first frame."""

    path: str
    span: Span
    image: Image


@dataclass(frozen=True)
class VideoGlance:
    """A video at a glance. times: of its frames, in seconds from the first one. differences: of each frame to the one
    before it, of 255; 0 for the first."""

    times: Sequence[float]
    differences: Sequence[float]

    @property
    def fps(self) -> float:
        """Frames per second, on average."""
        seconds = self.times[-1] - self.times[0]
        return (len(self.times) - 1) / seconds if seconds > 0 else 1.0

    @property
    def seconds(self) -> float:
        """The duration, with the last frame."""
        return self.times[-1] - self.times[0] + 1 / self.fps


def glance(path: str) -> VideoGlance:
    """Decodes a whole video in a few pixels. Raises ImageError."""
    times: list[float] = []
    differences: list[float] = []
    before: np.ndarray | None = None
    for time, pixels in glance_frames(path):
        small = pixels.astype(np.float32)
        times.append(time)
        differences.append(0.0 if before is None else float(np.abs(small - before).mean()))
        before = small
    if not times:
        raise ImageError(path, "it has no frames")
    return VideoGlance(times, differences)


def find_cuts(video: VideoGlance) -> list[float]:
    """The times at which another scene begins. Fades, which have no such frame, are not found."""
    cuts = []
    for number, difference in enumerate(video.differences):
        before = video.differences[max(1, number - _AROUND) : number]
        around = [*before, *video.differences[number + 1 : number + 1 + _AROUND]]
        if difference >= CUT and difference >= CUT_TO_NEIGHBORS * (median(around) if around else 0.0):
            cuts.append(video.times[number])
    return cuts


def pieces_of(video: VideoGlance, by_scene: bool, most_seconds: float | None, least_seconds: float = 0.0) -> list[Span]:
    """The parts that a video is divided into.

    most_seconds: longer scenes are divided into equal pieces; None for any length. least_seconds: shorter pieces are
    left out, such as those between the two cuts of a flash.
    """
    ends = [*(find_cuts(video) if by_scene else ()), video.seconds]
    pieces = []
    for start, end in itertools.pairwise([0.0, *ends]):
        count = 1 if most_seconds is None else max(1, math.ceil((end - start) / most_seconds - 1e-6))
        borders = [start + (end - start) * number / count for number in range(count + 1)]
        pieces += [Span(*pair) for pair in itertools.pairwise(borders)]
    return [piece for piece in pieces if piece.end - piece.start >= least_seconds - 1e-6]


def write_piece(path: str, piece: Span, target: Path, fps: float) -> None:
    """Writes a part of a video as MP4, at a constant rate, with its sound. Raises ImageError and OSError."""
    count = max(1, round((piece.end - piece.start) * fps))
    frames = read_frames(path, [piece.start + number / fps for number in range(count)])
    is_short = count / fps <= MOST_AUDIO_SECONDS
    waveform = read_sound(path, piece.start, count / fps, AUDIO_RATE) if is_short else None
    write_mp4(target, map(_even, frames), fps, None if waveform is None else Audio(waveform, AUDIO_RATE))


def pick_frames(path: str, video: VideoGlance, every_seconds: float) -> Iterator[tuple[float, Image]]:
    """The sharpest frame of each interval, with its time. Raises ImageError."""
    num_intervals = max(1, math.ceil(video.seconds / every_seconds - 1e-6))
    num_looks = max(1, round(every_seconds * min(_LOOKS_A_SECOND, video.fps)))
    times = [
        every_seconds * (number + look / num_looks) for number in range(num_intervals) for look in range(num_looks)
    ]
    times = [time for time in times if time <= video.times[-1]]
    frames = zip(times, read_frames(path, times), strict=True)
    for _, looks in itertools.groupby(frames, lambda frame: int(frame[0] / every_seconds + 1e-6)):
        # one frame at a time: those of a long interval do not fit into memory
        best = max(((measure_image(image).sharpness, -time, image) for time, image in looks), key=lambda look: look[:2])
        yield -best[1], best[2]


def split_videos(
    concept: ConceptConfig,
    target: str,
    rule: SplitRule,
    on_done: Callable[[int, int], None] = lambda done, total: None,
    is_wanted: Callable[[], bool] = lambda: True,
    on_written: Callable[[int], None] = lambda num_written: None,
) -> SplitVideos:
    """Writes the pieces, or the frames, of all videos of a concept to a new folder, with their captions.

    Folders of frames are not divided. target: must not exist, and appears once it is complete. on_done: called with the
    videos that are done, and all. is_wanted: asked before each piece or frame is written; nothing remains once it says
    no. on_written: called with the number of pieces or frames so far. Raises DataError.
    """
    folder = check_new_folder(concept, target)
    concept = replace(concept, enabled=True)
    dataset, paths = _find_videos(concept)
    table = read_tables([concept]).get(0)
    unreadable: list[tuple[str, str]] = []
    taken: set[str] = set()
    num_written = 0
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(folder) as making:
            on_done(0, len(paths))
            for done, path in enumerate(paths, start=1):
                _check(is_wanted)
                stem = making / _free_stem(path_in_concept(path, concept), taken)
                stem.parent.mkdir(parents=True, exist_ok=True)
                written: list[Path] = []
                try:
                    own = own_captions(path, concept, table)
                    for number, (file, span) in enumerate(_write(path, stem, rule), start=1):
                        written.append(file)
                        on_written(num_written + number)
                        _check(is_wanted)
                        if own and any(texts := captions_at(own, span)):
                            written.append(file.with_suffix(".txt"))
                            written[-1].write_text("\n".join(texts), encoding="utf-8")
                except ImageError as error:
                    unreadable.append((path, error.reason))
                    for file in written:
                        remove(file)
                    written = []
                num_written += sum(file.suffix != ".txt" for file in written)
                on_done(done, len(paths))
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{target} can't be written ({reason}): free some space, or choose another folder.") from error
    return SplitVideos(str(folder), len(paths) - len(unreadable), num_written, [*dataset.unreadable, *unreadable])


def preview_pieces(
    concept: ConceptConfig, rule: SplitRule, most: int, is_wanted: Callable[[], bool] = lambda: True
) -> Iterator[FoundPiece]:
    """The first pieces or frames that `split_videos` would write, at most so many; writes nothing.

    A video that can't be read is left out. is_wanted: asked before each piece. Raises DataError.
    """
    _, paths = _find_videos(replace(concept, enabled=True))
    num_found = 0
    for path in paths:
        with contextlib.suppress(ImageError):
            for piece in _look_at(path, rule):
                _check(is_wanted)
                yield piece
                num_found += 1
                if num_found == most:
                    return


def _find_videos(concept: ConceptConfig) -> tuple[Dataset, list[str]]:
    """All that is there, and the paths of the video files. Raises DataError if there are none."""
    dataset = scan([concept], videos=True)
    paths = [path for path, info in dataset.videos.items() if info.folder_fps is None]
    if not paths:
        raise DataError(f"{concept.path} has no video files: there is nothing to divide.")
    return dataset, paths


def _check(is_wanted: Callable[[], bool]) -> None:
    if not is_wanted():
        raise DataError("dividing the videos was canceled.")


def _look_at(path: str, rule: SplitRule) -> Iterator[FoundPiece]:
    video = glance(path)
    if rule.frame_seconds is not None:
        for time, image in pick_frames(path, video, rule.frame_seconds):
            yield FoundPiece(path, Span(time, time + 1 / video.fps), image)
        return
    pieces = pieces_of(video, rule.by_scene, rule.most_seconds, rule.least_seconds)
    frames = read_frames(path, [piece.start for piece in pieces])
    for piece, image in zip(pieces, frames, strict=True):
        yield FoundPiece(path, piece, image)


def _write(path: str, stem: Path, rule: SplitRule) -> Iterator[tuple[Path, Span]]:
    """Yields each file that was written, and what it shows."""
    video = glance(path)
    if rule.frame_seconds is not None:
        for number, (time, image) in enumerate(pick_frames(path, video, rule.frame_seconds), start=1):
            file = stem.with_name(f"{stem.name}_{number:03}.png")
            image.save(file)
            yield file, Span(time, time + 1 / video.fps)
        return
    pieces = pieces_of(video, rule.by_scene, rule.most_seconds, rule.least_seconds)
    for number, piece in enumerate(pieces, start=1):
        file = stem.with_name(f"{stem.name}_{number:03}.mp4")
        write_piece(path, piece, file, video.fps)
        yield file, piece


def _free_stem(name: str, taken: set[str]) -> str:
    """walk for walk.mp4, and walk_mov for a walk.mov beside it. taken: those before, in lower case."""
    stem, extension = os.path.splitext(name)
    if stem.lower() in taken:
        stem = f"{stem}_{extension[1:].lower()}"
    taken.add(stem.lower())
    return stem


def _even(image: Image) -> Image:
    """Without its last row or column where the number is odd, which H.264 can't store."""
    width, height = image.size
    return image.crop((0, 0, width // 2 * 2, height // 2 * 2)) if width % 2 or height % 2 else image
