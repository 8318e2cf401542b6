"""The first frame of a clip, also as an image encoder sees it, and the last frame where a model takes one.

Both are frames of the clip itself; samples start from images, or from the ends of a clip of the dataset.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from modules.data.clips import CLIP, clip_frames, clip_of
from modules.data.conditions.ConditionData import ConditionData, marked
from modules.data.crops import crop_of_sample
from modules.data.Dataset import Column
from modules.data.draws import uniform
from modules.data.errors import DataError
from modules.data.image_views import augmentation_of
from modules.data.images import fit_image, to_image
from modules.data.videos import frame_path, load_still
from modules.families.conditions import FirstFrame

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from modules.config.DataConfig import DataConfig
    from modules.config.SampleConfig import SampleConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.data.buckets import Buckets
    from modules.data.conditions.ConditionData import Decoded, Rows
    from modules.data.Dataset import Dataset
    from modules.data.ImageRequest import ImageRequest
    from modules.data.LatentEncoder import LatentEncoder

    Frames = Callable[[], Iterator[np.ndarray]]

# Of the column of a dataset: whether the model may be given the last frame of a sample, in runs where it is of any.
LAST_FRAME = "last frame"
# Likewise: whether it may be given the first frame, beside the latents.
FIRST_BESIDE = "first frame beside"
FIRST, FEATURES = "first_frame", "image_features"  # in a cache entry, as in `Batch.given`
BOTH_ENDS = "both_ends"  # in a cache entry: as FIRST, with the last frame, too


class _FirstFrame(ConditionData[FirstFrame]):
    def select(self, dataset: Dataset, config: TrainConfig) -> Dataset:
        if self.spec.needed:
            dataset = without_stills(dataset, self.family.label)
        clips = dataset.column(CLIP)
        if clips is None:
            return dataset
        column = Column([clip is not None and clip.num_frames > 1 for clip in clips])
        if self.spec.beside and config.data.image_to_video:
            dataset = dataset.with_column(FIRST_BESIDE, column)
        return dataset.with_column(LAST_FRAME, column) if self._last_share(config.data) else dataset

    def cached_pixels(self, dataset: Dataset, sample: int, pixels: float) -> float:
        # a clip's entry is half latents, half first frame; if it is given without and with the last, that half twice
        both_kinds = dataset.value(LAST_FRAME, sample) and self.spec.last != "needed"
        return pixels / 2 if both_kinds else 0.0

    def key_parts(
        self, dataset: Dataset, buckets: Buckets, sample: int, contents: Mapping[str, str | None]
    ) -> list[object]:
        parts: list[object] = [{"first_frame": True}] if self._is_seen(dataset, sample) else []
        return [*parts, {"last_frame": True}] if dataset.value(LAST_FRAME, sample) else parts

    def text_key_parts(
        self, dataset: Dataset, buckets: Buckets, sample: int, contents: Mapping[str, str | None]
    ) -> list[object]:
        clip, crop = clip_of(dataset, sample), crop_of_sample(dataset, sample)
        if not self.family.text.sees_first_frame or clip is None:
            return []
        look = [augmentation_of(dataset, sample).cache_key_part, *([crop.crop] if crop else [])]
        seen = [contents[dataset.paths[sample]], clip.start, clip.folder_fps, *buckets.shape_of(sample), *look]
        return [{"first_frame": seen}]

    def images_of_text(self, dataset: Dataset, buckets: Buckets, sample: int) -> list[Image.Image]:
        clip = clip_of(dataset, sample)
        if not self.family.text.sees_first_frame or clip is None:
            return []
        look = augmentation_of(dataset, sample), crop_of_sample(dataset, sample)
        with closing(clip_frames(dataset.paths[sample], clip, buckets.shape_of(sample), *look)) as frames:
            return [to_image(next(frames))]

    def load(self, dataset: Dataset, buckets: Buckets, sample: int, mask: np.ndarray | None) -> tuple[bool, bool]:
        """Whether the first frame is encoded by itself, and whether the last one may be given, too."""
        return self._is_seen(dataset, sample), bool(dataset.value(LAST_FRAME, sample))

    def encode(self, decoded: Decoded, latents: Tensor, encoder: LatentEncoder) -> dict[str, Tensor]:
        frames, count = decoded.frames, decoded.num_frames
        found: dict[str, Tensor] = {}
        is_seen, has_last = decoded.loaded[self.spec.name]
        if frames is None:
            return found
        if is_seen and self.spec.last != "needed":
            found[FIRST] = encode_ends(encoder, frames, count, last=False)
        if is_seen and self.spec.components:
            found[FEATURES] = image_features(encoder, frames)
        if has_last:
            found[BOTH_ENDS] = encode_ends(encoder, frames, count, last=True)
        return found

    def given(self, rows: Rows) -> dict[str, Tensor | list[list[Tensor]]]:
        import torch

        if self.spec.beside:
            return self._given_beside(rows)
        share, from_first = self._last_share(rows.data), 1.0 if self.spec.clean else rows.data.image_to_video
        is_clip = len(rows.shape) == 4 and rows.shape[1] > 1
        last = [bool(share) and uniform(*draw, "last frame") < share for draw in rows.draws]
        first = [is_clip and bool(from_first) and uniform(*draw, "image to video") < from_first for draw in rows.draws]
        records = [
            {**record, FIRST: record[BOTH_ENDS]} if both else record
            for record, both in zip(rows.records, last, strict=True)
        ]
        found: dict[str, Tensor | list[list[Tensor]] | None] = {
            name: torch.stack([record[name] for record in records]) for name in (FIRST, FEATURES) if name in records[0]
        }
        found |= {"last_given": marked(last), "first_given": marked(first)}
        return {name: value for name, value in found.items() if value is not None}

    def _given_beside(self, rows: Rows) -> dict[str, Tensor | list[list[Tensor]]]:
        """Of each sample a list, which is empty where the model is not given the first frame."""
        names = [FIRST, FEATURES] if self.spec.components else [FIRST]
        share = rows.data.image_to_video
        seen = [
            record if FIRST in record and uniform(*draw, "image to video") < share else None
            for record, draw in zip(rows.records, rows.draws, strict=True)
        ]
        if not any(seen):
            return {}
        return {name: [[record[name]] if record else [] for record in seen] for name in names}

    def clean(self, given: Mapping[str, Any], shape: tuple[int, ...]) -> Tensor | None:
        import torch

        if "first_given" not in given:
            return None
        is_first = torch.arange(shape[1]) == 0
        return given["first_given"].view(-1, 1, 1, 1, 1) & is_first.view(1, 1, -1, 1, 1)

    def sample_settings(self, dataset: Dataset, sample: int) -> dict[str, Any]:
        return {"reference": "\n".join(self._ends(dataset, sample))} if self.spec.needed else {}

    def further_images(self, sample: SampleConfig) -> dict[str, str]:
        return {"last_frame": sample.last_frame} if self.spec.last else {}

    def why_too_few(self, num_images: int) -> str:
        if self.spec.needed and not num_images:
            return "makes videos of images; name one."
        if self.spec.last == "needed" and num_images == 1:
            return "makes videos between two images; name the last one, too."
        return ""

    def pipeline(self, request: ImageRequest) -> str:
        return self.spec.pipeline if request.references else ""

    def sample_arguments(self, request: ImageRequest, count: int) -> dict[str, Any]:
        if not request.references:
            return {}
        arguments = {"image": _frame(request.references[0], request)}
        if self.spec.last and (last := request.last_frame or "".join(request.references[1:])):
            seconds = (request.frames - 1) / (request.fps or self.family.fps)
            arguments["last_image"] = _frame(last, request, seconds)
        return arguments

    def _is_seen(self, dataset: Dataset, sample: int) -> bool:
        """Whether the model may see the first frame of a sample beside its latents, or in place of some."""
        return self.spec.needed or bool(dataset.value(FIRST_BESIDE, sample))

    def _last_share(self, data: DataConfig) -> float:
        """The fraction of the clips of which the model is given the last frame, too."""
        return {"": 0.0, "optional": data.last_frame, "needed": 1.0}[self.spec.last]

    def _ends(self, dataset: Dataset, sample: int) -> list[str]:
        """The first frame of a sample's clip, and the last one if the family needs it."""
        path, clip = dataset.paths[sample], clip_of(dataset, sample)
        if clip is None:
            return [path]
        times = [clip.times[0], clip.times[-1]] if self.spec.last == "needed" else [clip.start]
        return [frame_path(path, seconds, clip.folder_fps) for seconds in times]


def without_stills(dataset: Dataset, family: str, least: int = 2) -> Dataset:
    """A dataset as from `with_clips` without single frames, of which a model of videos alone can't learn.

    family: its name, for the messages. least: how many frames a clip of it has; a shorter one is a single frame.
    Raises DataError if nothing is left.
    """
    clips = [clip_of(dataset, sample) for sample in range(len(dataset))]
    kept = [sample for sample, clip in enumerate(clips) if clip is not None and clip.num_frames > 1]
    is_still, are_stills = ("is a single frame", "are") if least == 2 else (f"has fewer than {least} frames", "have")
    if not kept:
        path = dataset.paths[0]
        raise DataError(f"{path} {is_still}, as all others {are_stills}, but {family} learns from videos: add some.")
    alone = set(range(len(clips))).difference(kept)
    reason = f"it {is_still}, and {family} learns from videos"
    stills = [(dataset.paths[sample], reason) for sample in sorted(alone)]
    # not among the unreadable ones: nothing is wrong with them, however many there are
    return replace(dataset.take(kept), stills=stills)


def encode_ends(encoder: LatentEncoder, frames: Frames, num_frames: int, last: bool) -> Tensor:
    """A row of the `first_frame` in `Batch.given`: a clip of `num_frames` with gray in place of all but the first.

    frames: of the clip, as in `LatentEncoder.encode_clip`. last: whether the last one is kept, too.
    """
    import torch

    spec = encoder.family.condition(FirstFrame)
    if spec is not None and spec.encode is not None:
        with torch.no_grad():
            return spec.encode(encoder.family, encoder.vae, torch.from_numpy(next(frames()))[None])[0]

    def gray_elsewhere() -> Iterator[np.ndarray]:
        rest = frames()
        first = next(rest)
        yield first
        yield from itertools.repeat(np.zeros_like(first), num_frames - 1 - last)
        if last:
            yield from deque(rest, maxlen=1)

    return encoder.encode_clip(gray_elsewhere)


def image_features(encoder: LatentEncoder, frames: Frames) -> Tensor:
    """Of a clip, as a row of the `image_features` in `Batch.given`, if the family's FirstFrame has components."""
    import torch

    spec = encoder.family.condition(FirstFrame)
    assert encoder.pipe is not None
    assert spec is not None
    assert spec.features is not None
    rest = frames()
    seen = [next(rest)]
    if spec.last == "needed":
        seen += deque(rest, maxlen=1)
    with torch.no_grad():
        return spec.features(encoder.pipe, [to_image(frame) for frame in seen])


def _frame(path: str, request: ImageRequest, seconds: float = 0.0) -> Image.Image:
    """An end of a video in the size of the request. seconds: as for `load_still`. Raises ImageError."""
    image = load_still(path, seconds=seconds)
    return fit_image(image, request.width or image.width, request.height or image.height)


CONDITION = _FirstFrame
