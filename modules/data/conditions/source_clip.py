"""Source clips: what a model sees beside each clip, such as the video before the edit that it should learn.

The source of `people/walk.mp4` is the video `people/walk.*` in the concept's folder of source clips, or a folder of
frames of that name; that of an image is an image. Its frames are those that a player shows at the times of the clip
itself, cropped and augmented like it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.config.clips import clip_length
from modules.config.counted import counted
from modules.data.clips import ROUNDED_FRAMES, Clip, clip_frames, clip_of, frame_pixels
from modules.data.conditions.ConditionData import ConditionData
from modules.data.conditions.references import is_alike
from modules.data.crops import crop_of_sample, whole_size
from modules.data.Dataset import Column
from modules.data.errors import DataError, ImageError
from modules.data.image_views import augmentation_of
from modules.data.images import fit_image, load_image, size_or_reason
from modules.data.paired_files import find_paired
from modules.data.videos import (
    VideoInfo,
    by_numbers,
    frame_path,
    info_or_reason,
    is_video,
    load_still,
    read_frames,
    read_info,
    split_time,
)
from modules.families.conditions import SourceClip

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image
    from torch import Tensor

    from modules.config.TrainConfig import TrainConfig
    from modules.data.buckets import Buckets
    from modules.data.conditions.ConditionData import Decoded, Rows
    from modules.data.Dataset import Dataset
    from modules.data.ImageRequest import ImageRequest
    from modules.data.LatentEncoder import LatentEncoder

NUM_READERS = 8
SOURCE = "source clip"  # of the column of a dataset: the Source of each sample
GIVEN = "source_clip"  # in a cache entry and in `Batch.given`


@dataclass(frozen=True)
class Source:
    """The file or folder of frames that a sample's source clip is taken from. info: None for an image."""

    path: str
    info: VideoInfo | None

    def lasts(self, clip: Clip) -> bool:
        """Whether it is as long as the part of the video that the clip is."""
        assert self.info is not None  # a clip's source is a video
        return int(self.info.seconds * clip.fps + ROUNDED_FRAMES) >= round(clip.start * clip.fps) + clip.num_frames


class _SourceClip(ConditionData[SourceClip]):
    folder_setting = "source_folder"
    takes_videos = True

    def find(self, dataset: Dataset, config: TrainConfig) -> Dataset:
        has_folder = any(concept.enabled and concept.source_folder for concept in dataset.concepts)
        return with_sources(dataset, self.family.label) if self.spec.needed or has_folder else dataset

    def select(self, dataset: Dataset, config: TrainConfig) -> Dataset:
        """Without the clips that their sources are too short for."""
        short = {sample: text for sample in range(len(dataset)) if (text := _why_too_short(dataset, sample))}
        if len(short) == len(dataset):
            raise DataError(f"{dataset.paths[0]} can't be trained, nor can any other: {short[0]}; use longer ones.")
        kept = [sample for sample in range(len(dataset)) if sample not in short]
        return dataset.take(kept, [(dataset.paths[sample], text) for sample, text in short.items()])

    def passes(self, dataset: Dataset) -> Sequence[str] | None:
        sources = dataset.column(SOURCE)
        return None if self.spec.needed or sources is None else ["with source" if one else "" for one in sources]

    def describe(self, dataset: Dataset) -> tuple[str, str] | None:
        sources = dataset.column(SOURCE)
        if sources is None:
            return None
        lacking = sum(source is None for source in sources)
        return "Sources", f"for all but {lacking} of the clips and images" if lacking else "one for each clip or image"

    def cached_pixels(self, dataset: Dataset, sample: int, pixels: float) -> float:
        return pixels if dataset.value(SOURCE, sample) else 0.0

    def key_parts(
        self, dataset: Dataset, buckets: Buckets, sample: int, contents: Mapping[str, str | None]
    ) -> list[object]:
        source = dataset.value(SOURCE, sample)
        if source is None:
            return []
        return [{"source_clip": [contents[source.path], source.info and source.info.folder_fps]}]

    def load(
        self, dataset: Dataset, buckets: Buckets, sample: int, mask: np.ndarray | None
    ) -> Callable[[], Iterator[np.ndarray]] | None:
        """What gives its frames as `clip_frames`; those of a clip are read while it is encoded. None without one."""
        clip = clip_of(dataset, sample)
        if dataset.value(SOURCE, sample) is None:
            return None
        frames = partial(source_frames, dataset, buckets, sample, keeps_colors=self.spec.is_control)
        if clip is not None and clip.num_frames > 1:
            return frames
        image = list(frames())
        return lambda: iter(image)

    def encode(self, decoded: Decoded, latents: Tensor, encoder: LatentEncoder) -> dict[str, Tensor]:
        import torch

        frames = decoded.loaded[self.spec.name]
        if frames is None:
            return {}
        if decoded.num_frames > 1:
            return {GIVEN: encoder.encode_clip(frames)}
        return {GIVEN: encoder.encode(torch.from_numpy(next(frames()))[None])[0]}

    def given(self, rows: Rows) -> dict[str, Tensor | list[list[Tensor]]]:
        import torch

        if GIVEN not in rows.records[0]:  # which then all are without, by `passes`
            return {}
        return {GIVEN: torch.stack([record[GIVEN] for record in rows.records])}

    def sample_settings(self, dataset: Dataset, sample: int) -> dict[str, Any]:
        source, clip = dataset.value(SOURCE, sample), clip_of(dataset, sample)
        if source is None:
            return {}
        if clip is None or source.info is None:
            return {"reference": source.path}
        times = clip.times if os.path.isdir(source.path) else clip.times[:1]
        return {"reference": "\n".join(frame_path(source.path, time, source.info.folder_fps) for time in times)}

    def why_too_few(self, num_images: int) -> str:
        return "makes videos of videos; name one." if self.spec.needed and not num_images else ""

    def claims(self, request: ImageRequest) -> bool:
        """Of a model that goes on from images, too, an image is the first frame of a clip."""
        if not request.references:
            return False
        is_clip = len(request.references) > 1 or is_video(split_time(request.references[0])[0])
        return self.spec.needed or is_clip or request.frames == 1

    def pipeline(self, request: ImageRequest) -> str:
        return self.spec.pipeline if self.claims(request) else ""

    def sample_arguments(self, request: ImageRequest, count: int) -> dict[str, Any]:
        if not self.claims(request):
            return {}
        frames = self._sample_frames(request)
        if self.spec.arguments is not None:
            own = self.spec.arguments(frames)
        else:  # the pipeline of a control clip takes one for each prompt
            own = {self.spec.argument: [frames] * count if self.spec.is_control else frames}
        return {**own, self.family.frames_argument: len(frames)}

    def _sample_frames(self, request: ImageRequest) -> list[Image.Image]:
        """Those of the source, or as many as make a clip if these are fewer than the request's.

        Several references are its frames, and an image is a clip of one.
        """
        path, seconds = split_time(request.references[0])
        rule = self.family.frame_step, self.family.frame_rest
        if len(request.references) > 1 or not is_video(path):
            files = sorted(request.references, key=by_numbers)
            images: Iterator[Image.Image] = map(
                load_still, files[: clip_length(min(len(files), request.frames), *rule)]
            )
        else:
            start, fps = seconds or 0.0, request.fps or self.family.fps
            available = int((read_info(path).seconds - start) * fps + ROUNDED_FRAMES)
            count = clip_length(min(max(1, available), request.frames), *rule)
            images = read_frames(path, [start + number / fps for number in range(count)])
        return [fit_image(image, request.width or image.width, request.height or image.height) for image in images]


def with_sources(dataset: Dataset, family: str) -> Dataset:
    """Adds source clips to a dataset without views, and removes the samples of which it can't be read.

    family: its name, for the messages. Samples of concepts without a folder have none. Raises DataError if a folder of
    source clips does not exist, if it has none or several for a sample, or one of another kind or aspect ratio, or if
    nothing is left.
    """
    found = find_paired(dataset, "source_folder", "source clip", "source clips", videos=True)
    for path, number, sources in zip(dataset.paths, dataset.concept_index.tolist(), found, strict=True):
        if len(sources) != 1 and dataset.concepts[number].source_folder:
            raise DataError.at(
                f"concepts.{number}.source_folder",
                f"has {counted(len(sources), 'source clip')} for {path}, but {family} needs one for each: add one of "
                "its name, or remove the others.",
            )
    with ThreadPoolExecutor(NUM_READERS) as readers:
        read = list(readers.map(partial(_read, dataset), range(len(dataset)), map("".join, found)))
    lost = [
        (path, f"its source clip {os.path.basename(file)} can't be read: {source}")
        for path, file, source in zip(dataset.paths, map("".join, found), read, strict=True)
        if isinstance(source, str)
    ]
    kept = [sample for sample, source in enumerate(read) if not isinstance(source, str)]
    if not kept:
        raise DataError(f"none of the source clips can be read, such as that of {lost[0][0]}: repair or remove them.")
    column = Column(
        [None if isinstance(source, str) else source for source in read],
        files=lambda source: [source.path] if source else [],
        identity=lambda source: [Path(source.path).name] if source else [],
    )
    return dataset.with_column(SOURCE, column).take(kept, lost)


def _read(dataset: Dataset, sample: int, path: str) -> Source | str | None:
    """The source of a sample, or the reason why it can't be read. Raises DataError if it doesn't fit the sample.

    path: of the source; "" without one.
    """
    if not path:
        return None
    own, of_video = dataset.paths[sample], dataset.videos.get(dataset.paths[sample])
    if is_video(path) != (of_video is not None):
        kinds = ("a video", "an image") if of_video is None else ("an image", "a video")
        raise DataError(f"source clip {path} is {kinds[0]} and {own} is {kinds[1]}: replace it by one of that kind.")
    folder_fps = dataset.concepts[dataset.concept_index[sample]].frame_folders_fps
    info = None if of_video is None else info_or_reason(path, folder_fps)
    size = size_or_reason(path) if info is None else info if isinstance(info, str) else info[:2]
    if isinstance(size, str) or isinstance(info, str):
        return str(size)
    _check_aspect(path, size, own, whole_size(dataset, sample))
    return Source(path, info)


def _check_aspect(path: str, size: Sequence[int], own: str, of_own: Sequence[int]) -> None:
    if not is_alike(size, of_own):
        raise DataError(
            f"source clip {path} is {size[0]} x {size[1]} and {os.path.basename(own)} {of_own[0]} x {of_own[1]}: both "
            "need the same aspect ratio; crop one of them."
        )


def _why_too_short(dataset: Dataset, sample: int) -> str:
    source, clip = dataset.value(SOURCE, sample), clip_of(dataset, sample)
    if clip is None or source is None or source.lasts(clip):
        return ""
    end = clip.start + clip.num_frames / clip.fps
    name = os.path.basename(source.path)
    return f"its source clip {name} ends after {source.info.seconds:.2f} s, before the clip does at {end:.2f} s"


def source_frames(dataset: Dataset, buckets: Buckets, sample: int, keeps_colors: bool = False) -> Iterator[np.ndarray]:
    """The frames of a sample's source as from `clip_frames`. Raises ImageError.

    keeps_colors: whether they are augmented like the sample in all but their colors.
    """
    source, clip, augmentation = (
        dataset.value(SOURCE, sample),
        clip_of(dataset, sample),
        augmentation_of(dataset, sample),
    )
    augmentation = augmentation.without_colors if keeps_colors else augmentation
    look = buckets.shape_of(sample), augmentation, crop_of_sample(dataset, sample)
    try:
        if clip is None:
            yield frame_pixels(load_image(source.path), *look)
        else:
            yield from clip_frames(source.path, replace(clip, folder_fps=source.info.folder_fps), *look)
    except ImageError as error:
        reason = f"its source clip {os.path.basename(source.path)} can't be read: {error.reason}"
        raise ImageError(error.path, reason) from error


CONDITION = _SourceClip
