"""Source clips: what a model sees beside each clip, such as the video before the edit that it should learn.

The source of `people/walk.mp4` is the video `people/walk.*` in the concept's folder of source clips, or a folder of
frames of that name; that of an image is an image. Its frames are those that a player shows at the times of the clip
itself, cropped and augmented like it.

Some models also see a mask of the source, white where they make the video anew: the mask of the clip, as of images
(masks.py), or a clip itself (mask_clips.py). Without one, it is white all over, and the source is all control.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from modules.config.clips import clip_length
from modules.config.counted import counted
from modules.data.clips import ROUNDED_FRAMES, Clip, clip_frames, clip_of, frame_pixels
from modules.data.conditions.ConditionData import ConditionData
from modules.data.conditions.inpainting import check_mask
from modules.data.conditions.references import is_alike
from modules.data.crops import crop_of_sample, whole_size
from modules.data.Dataset import Column
from modules.data.errors import DataError, ImageError
from modules.data.image_views import augmentation_of
from modules.data.images import fit_image, load_image, size_or_reason
from modules.data.mask_clips import mask_frames, sample_masks
from modules.data.masks import fit_mask, is_mask_clip, mask_of
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
    from torch import Tensor

    from modules.config.SampleConfig import SampleConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.data.buckets import Buckets
    from modules.data.conditions.ConditionData import Decoded, Rows
    from modules.data.Dataset import Dataset
    from modules.data.ImageRequest import ImageRequest
    from modules.data.LatentEncoder import LatentEncoder

NUM_READERS = 8
SOURCE = "source clip"  # of the column of a dataset: the Source of each sample
GIVEN = "source_clip"  # in a cache entry and in `Batch.given`
MASK_CHANNELS = "source_mask"  # in a cache entry: bool[M, F, h, w]; none where the mask is white all over


@dataclass(frozen=True)
class Source:
    """The file or folder of frames that a sample's source clip is taken from. info: None for an image."""

    path: str
    info: VideoInfo | None
    mask_info: VideoInfo | None = None


@dataclass(frozen=True)
class _Frames:
    """What is read of a source. shown: gives its frames as `clip_frames`; where there can be masks, as they are, for a
    control has no colors that augmentation could change. stays: gives them in the colors of the clip.

    masks: gives bool[1, H, W] of each frame, True where it is made anew; None where it is all of them. is_clip: whether
    each frame has a mask of its own. shape: width and height of the frames.
    """

    shown: Callable[[], Iterator[np.ndarray]]
    stays: Callable[[], Iterator[np.ndarray]]
    masks: Callable[[], Iterator[np.ndarray]] | None
    is_clip: bool
    shape: tuple[int, int]

    def part(self, is_made: bool) -> Iterator[np.ndarray]:
        """The frames with gray where the mask says otherwise."""
        assert self.masks is not None
        for frame, mask in zip(self.shown() if is_made else self.stays(), self.masks(), strict=True):
            yield frame * (mask == is_made)


@dataclass(frozen=True, eq=False)
class _SourceClip(ConditionData[SourceClip]):
    folder_setting = "source_folder"
    takes_videos = True

    # latents of gray clips by frames, width and height: they are the same for all without a mask
    _gray: dict[tuple[int, ...], Tensor] = field(default_factory=dict, init=False)

    def find(self, dataset: Dataset, config: TrainConfig) -> Dataset:
        has_folder = any(concept.enabled and concept.source_folder for concept in dataset.concepts)
        if not self.spec.needed and not has_folder:
            return dataset
        found = with_sources(dataset, self.family.label)
        if self.spec.masked:
            _check_others(found)
        return found

    def select(self, dataset: Dataset, config: TrainConfig) -> Dataset:
        """Without the clips that their sources or masks are too short for."""
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
        text = f"for all but {lacking} of the clips and images" if lacking else "one for each clip or image"
        num_masks = sum(bool(mask_of(dataset, sample)) for sample in dataset.images_of(range(len(dataset))))
        return "Sources", text + (f", {num_masks} with a mask" if self.spec.masked else "")

    def cached_pixels(self, dataset: Dataset, sample: int, pixels: float) -> float:
        """Of the mask, latent cells have a byte for each pixel, as many as they have themselves in float32."""
        if not dataset.value(SOURCE, sample):
            return 0.0
        return pixels * (2 + bool(mask_of(dataset, sample)) if self.spec.masked else 1)

    def key_parts(
        self, dataset: Dataset, buckets: Buckets, sample: int, contents: Mapping[str, str | None]
    ) -> list[object]:
        """Beside the mask file, which every key has."""
        source = dataset.value(SOURCE, sample)
        if source is None:
            return []
        part: dict[str, object] = {"source_clip": [contents[source.path], source.info and source.info.folder_fps]}
        if self.spec.masked:
            part["masked"] = source.mask_info and source.mask_info.folder_fps
        return [part]

    def load(self, dataset: Dataset, buckets: Buckets, sample: int, mask: np.ndarray | None) -> _Frames | None:
        """Those of a clip are read while it is encoded. None without a source."""
        if dataset.value(SOURCE, sample) is None:
            return None
        clip, shape = clip_of(dataset, sample), buckets.shape_of(sample)
        stays = partial(source_frames, dataset, buckets, sample)
        shown = partial(stays, keeps_colors=self.spec.is_control or self.spec.masked)
        is_clip = dataset.value(SOURCE, sample).mask_info is not None
        masks: Callable[[], Iterator[np.ndarray]] | None = partial(source_masks, dataset, buckets, sample)
        if not self.spec.masked or (mask is None and not is_clip):
            masks = None
        elif mask is not None:
            masks = partial(repeat, mask >= 0.5, clip.num_frames if clip else 1)
        if clip is not None and clip.num_frames > 1:
            return _Frames(shown, stays, masks, is_clip, shape)
        if masks is None:
            return _Frames(_read_now(shown), stays, masks, is_clip, shape)
        return _Frames(_read_now(shown), _read_now(stays), _read_now(masks), is_clip, shape)

    def encode(self, decoded: Decoded, latents: Tensor, encoder: LatentEncoder) -> dict[str, Tensor]:
        import torch

        from modules.families.inpainting import clip_mask_channels

        seen: _Frames | None = decoded.loaded[self.spec.name]
        if seen is None:
            return {}

        def latents_of(frames: Callable[[], Iterator[np.ndarray]]) -> Tensor:
            if decoded.num_frames > 1:
                return encoder.encode_clip(frames)
            return encoder.encode(torch.from_numpy(next(frames()))[None])[0]

        if not self.spec.masked:
            return {GIVEN: latents_of(seen.shown)}
        if seen.masks is None:
            shape = decoded.num_frames, *seen.shape
            if shape not in self._gray:
                gray = np.zeros((3, *seen.shape[::-1]), np.float32)
                self._gray[shape] = latents_of(partial(repeat, gray, decoded.num_frames))
            return {GIVEN: torch.cat([self._gray[shape], latents_of(seen.shown)])}
        parts = [latents_of(partial(seen.part, is_made)) for is_made in (False, True)]
        masks = torch.from_numpy(np.stack([*seen.masks()])).float()
        channels = clip_mask_channels(masks, latents.shape)
        of_loss = {"mask": channels.mean(0, keepdim=True)} if seen.is_clip else {}  # for masked training
        return {GIVEN: torch.cat(parts), MASK_CHANNELS: channels.bool(), **of_loss}

    def given(self, rows: Rows) -> dict[str, Tensor | list[list[Tensor]]]:
        import torch

        if GIVEN not in rows.records[0]:  # which then all are without, by `passes`
            return {}
        if not self.spec.masked:
            return {GIVEN: torch.stack([record[GIVEN] for record in rows.records])}
        width, _ = rows.buckets.shape_of(rows.draws[0][2])
        white = torch.ones((width // rows.shape[-1]) ** 2, *rows.shape[1:])
        masks = [record.get(MASK_CHANNELS, white) for record in rows.records]
        pairs = zip(rows.records, masks, strict=True)
        return {GIVEN: torch.stack([torch.cat([record[GIVEN], mask.to(record[GIVEN])]) for record, mask in pairs])}

    def sample_settings(self, dataset: Dataset, sample: int) -> dict[str, Any]:
        source, mask = dataset.value(SOURCE, sample), mask_of(dataset, sample)
        if source is None:
            return {}
        settings = {"reference": _from(source.path, clip_of(dataset, sample), source.info)}
        if mask and self.spec.masked:
            settings["mask"] = _from(mask, clip_of(dataset, sample), source.mask_info)
        return settings

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

    def check_sample(self, sample: SampleConfig, path: str) -> None:
        check_mask(sample.mask, sample.reference, self.family, f"{path}.mask", "reference")

    def sample_arguments(self, request: ImageRequest, count: int) -> dict[str, Any]:
        if not self.claims(request):
            return {}
        frames = iter(self._sample_frames(request))
        first = next(frames)
        width, height = request.width or first.width, request.height or first.height
        if self.spec.masked:
            width, height = self._shape(request, first.size)
        video = [fit_image(image, width, height) for image in chain([first], frames)]
        if self.spec.arguments is not None:
            own = self.spec.arguments(video)
        else:  # the pipeline of a control clip takes one for each prompt
            own = {self.spec.argument: [video] * count if self.spec.is_control else video}
        arguments: dict[str, Any] = {**own, self.family.frames_argument: len(video)}
        if self.spec.masked:  # the pipeline makes the video in its own size, whatever that of the source
            arguments |= {"width": width, "height": height}
        if self.spec.masked and request.mask:
            masks = sample_masks(request.mask, first.size, len(video), request.fps or self.family.fps)
            fitted = (fit_mask(mask, first.size, width, height)[0] >= 0.5 for mask in masks)
            arguments["mask"] = [Image.fromarray(mask).convert("L") for mask in fitted]
        return arguments

    def _shape(self, request: ImageRequest, size: tuple[int, int]) -> tuple[int, int]:
        """The width and height of a sample: as asked for, or that of its source, at most as large as the model's."""
        side, align = self.family.published.side if self.family.published else math.inf, self.family.align
        scale = min(1.0, side / math.sqrt(size[0] * size[1]))
        sides = zip((request.width, request.height), size, strict=True)
        width, height = (max(align, int(asked or own * scale) // align * align) for asked, own in sides)
        return width, height

    def _sample_frames(self, request: ImageRequest) -> Iterator[Image.Image]:
        """Those of the source, whole, or as many as make a clip if these are fewer than the request's.

        Several references are its frames, and an image is a clip of one.
        """
        path, seconds = split_time(request.references[0])
        rule = self.family.frame_step, self.family.frame_rest
        if len(request.references) > 1 or not is_video(path):
            files = sorted(request.references, key=by_numbers)
            return map(load_still, files[: clip_length(min(len(files), request.frames), *rule)])
        start, fps = seconds or 0.0, request.fps or self.family.fps
        available = int((read_info(path).seconds - start) * fps + ROUNDED_FRAMES)
        count = clip_length(min(max(1, available), request.frames), *rule)
        return read_frames(path, [start + number / fps for number in range(count)])


def _read_now(frames: Callable[[], Iterator[np.ndarray]]) -> Callable[[], Iterator[np.ndarray]]:
    """What gives the same frames again without reading files."""
    return partial(iter, list(frames()))


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
    mask = mask_of(dataset, sample)
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
    of_mask = info_or_reason(mask, folder_fps) if mask and is_mask_clip(mask) else None
    return Source(path, info, None if isinstance(of_mask, str) else of_mask)  # whose size has been read before


def _check_aspect(path: str, size: Sequence[int], own: str, of_own: Sequence[int]) -> None:
    if not is_alike(size, of_own):
        raise DataError(
            f"source clip {path} is {size[0]} x {size[1]} and {os.path.basename(own)} {of_own[0]} x {of_own[1]}: both "
            "need the same aspect ratio; crop one of them."
        )


def _check_others(dataset: Dataset) -> None:
    """Raises DataError if a clip is its own source, in which the model would see what it should make."""
    for sample, path in enumerate(dataset.paths):
        if os.path.realpath(dataset.value(SOURCE, sample).path) == os.path.realpath(path):
            raise DataError.at(
                f"concepts.{dataset.concept_index[sample]}.source_folder",
                f"has {path} as the source clip of itself, in which the model would see what it should make: choose "
                "another folder, with clips that are gray where their masks are white.",
            )


def _why_too_short(dataset: Dataset, sample: int) -> str:
    source, clip = dataset.value(SOURCE, sample), clip_of(dataset, sample)
    if clip is None or source is None:
        return ""
    files = (("source clip", source.path, source.info), ("mask", mask_of(dataset, sample) or "", source.mask_info))
    for what, path, info in files:
        if info is not None and not _lasts(info, clip):
            end = clip.start + clip.num_frames / clip.fps
            name = os.path.basename(path)
            return f"its {what} {name} ends after {info.seconds:.2f} s, before the clip does at {end:.2f} s"
    return ""


def _lasts(info: VideoInfo, clip: Clip) -> bool:
    """Whether a video is as long as the part of another that the clip is."""
    return int(info.seconds * clip.fps + ROUNDED_FRAMES) >= round(clip.start * clip.fps) + clip.num_frames


def _from(path: str, clip: Clip | None, info: VideoInfo | None) -> str:
    """What samples name to start where a clip does: its file and time, or of a folder its frames."""
    if clip is None or info is None:
        return path
    times = clip.times if os.path.isdir(path) else clip.times[:1]
    return "\n".join(frame_path(path, time, info.folder_fps) for time in times)


def source_frames(dataset: Dataset, buckets: Buckets, sample: int, keeps_colors: bool = False) -> Iterator[np.ndarray]:
    """The frames of a sample's source as from `clip_frames`. Raises ImageError.

    keeps_colors: whether they are augmented like the sample in all but their colors.
    """
    source, clip, augmentation = (
        dataset.value(SOURCE, sample),
        clip_of(dataset, sample),
        augmentation_of(dataset, sample),
    )
    if keeps_colors:
        augmentation = augmentation.without_colors
    look = buckets.shape_of(sample), augmentation, crop_of_sample(dataset, sample)
    try:
        if clip is None:
            yield frame_pixels(load_image(source.path), *look)
        else:
            yield from clip_frames(source.path, replace(clip, folder_fps=source.info.folder_fps), *look)
    except ImageError as error:
        reason = f"its source clip {os.path.basename(source.path)} can't be read: {error.reason}"
        raise ImageError(error.path, reason) from error


def source_masks(dataset: Dataset, buckets: Buckets, sample: int) -> Iterator[np.ndarray]:
    """bool[1, H, W] of each of `source_frames`, True where it is made anew, of a mask that is a clip.

    Raises ImageError.
    """
    source, clip, mask = dataset.value(SOURCE, sample), clip_of(dataset, sample), mask_of(dataset, sample)
    assert clip is not None  # of images, masks are no clips
    assert mask is not None
    look = buckets.shape_of(sample), augmentation_of(dataset, sample), crop_of_sample(dataset, sample)
    try:
        yield from mask_frames(mask, clip.times, source.mask_info.folder_fps, whole_size(dataset, sample), *look)
    except ImageError as error:
        raise ImageError(error.path, f"its mask {os.path.basename(mask)} can't be read: {error.reason}") from error


CONDITION = _SourceClip
