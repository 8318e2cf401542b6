"""Preview of a concept: its counts, its share of an epoch, its augmented images and its captions.

No Tk and no torch, so that it can run in a thread of the window. It uses the training's own functions.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from modules.config.clips import clip_rule
from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.families import load_families
from modules.config.methods import facts_of
from modules.data.Augmentation import NO_AUGMENTATION, draw_augmentation, fixed_augmentation
from modules.data.buckets import assign_buckets
from modules.data.caption_tables import read_table
from modules.data.captions import read_captions, trained_words
from modules.data.CaptionSource import CaptionSource
from modules.data.clips import clips_of, with_clips
from modules.data.concepts import scan
from modules.data.conditions import condition_class
from modules.data.crops import read_crop
from modules.data.Dataset import Dataset
from modules.data.folder_walk import NO_OUTPUTS, Outputs
from modules.data.image_views import resolutions_of
from modules.data.images import adjust_colors, fit_image, load_image, read_size
from modules.data.videos import is_video, read_frames, read_info
from modules.ui.models.decoding import fit_inside

if TYPE_CHECKING:
    from modules.config.clips import ClipRule
    from modules.config.ConceptConfig import ConceptConfig
    from modules.config.DataConfig import DataConfig
    from modules.config.TrainConfig import TrainConfig

NUM_READERS = 1  # of headers: each further thread makes the window wait a millisecond for the GIL at each call of Tk
MAX_SHOWN = 12  # augmentations or captions of one image


@dataclass(frozen=True)
class ConceptPictures:
    """The content of a concept's folder.

    paths: of the readable images and videos, sorted by name. num_videos: how many of them are videos. num_samples:
    images and clips. num_unreadable, num_without_caption: counts. num_of_runs: number of images written by runs, which
    are left out. smallest_side: of all images, in pixels; 0 without images.
    error: a sentence on why there is nothing; empty if all is well.
    """

    paths: tuple[str, ...] = ()
    num_videos: int = 0
    num_samples: int = 0
    num_unreadable: int = 0
    num_without_caption: int = 0
    num_of_runs: int = 0
    smallest_side: int = 0
    error: str = ""

    @property
    def content(self) -> str:
        """The images and videos, in words."""
        images = counted(len(self.paths) - self.num_videos, "image")
        if not self.num_videos:
            return images
        videos, num_clips = counted(self.num_videos, "video"), self.num_samples - len(self.paths) + self.num_videos
        if num_clips != self.num_videos:
            videos += f" ({counted(num_clips, 'clip')})"
        return videos if self.num_videos == len(self.paths) else f"{images}, {videos}"

    @property
    def counts(self) -> str:
        """The content, and what of it is missing, damaged or left out, in words."""
        parts = [self.content]
        if self.num_without_caption:
            parts.append(f"{self.num_without_caption:,} without a caption")
        if self.num_unreadable:
            parts.append(f"{self.num_unreadable:,} can't be read")
        if self.num_of_runs:
            parts.append(f"{self.num_of_runs:,} written by runs left out")
        return ", ".join(parts)


def find_pictures(
    concept: ConceptConfig,
    number: int,
    is_wanted: Callable[[], bool] = lambda: True,
    outputs: Outputs = NO_OUTPUTS,
    rule: ClipRule | None = None,
) -> ConceptPictures:
    """The images and videos of one concept, enabled or not. Reads every header, so don't call it in the Tk thread.

    number: N in "concepts.N", for the message in `error`. is_wanted, outputs: as for `scan`; the result is meaningless
    once it is not wanted. rule: how videos become clips; None: they are left out.
    """
    # The others are placeholders, so that messages have the right number; being disabled, they are not scanned.
    others = [replace(concept, enabled=False)] * number
    try:
        dataset = scan([*others, replace(concept, enabled=True)], NUM_READERS, is_wanted, outputs, rule is not None)
    except UserError as error:
        return ConceptPictures(error=str(error))
    num_of_runs = sum(dataset.run_images.values())
    return ConceptPictures(
        tuple(dataset.paths),
        len(dataset.videos),
        len(with_clips(dataset, rule)),
        len(dataset.unreadable),
        len(dataset.missing_captions),
        num_of_runs,
        int(np.minimum(dataset.widths, dataset.heights).min()) if len(dataset) else 0,
    )


def samples_per_epoch(concepts: Sequence[ConceptConfig], num_images: Sequence[int]) -> list[float]:
    """The number of samples per epoch of each concept, with repeats, shares and regularization as in the training.

    num_images: of each concept, with clips; those of disabled ones don't count. The validation split by
    data.validation_share is not subtracted.
    """
    counts = [number if concept.enabled else 0 for concept, number in zip(concepts, num_images, strict=True)]
    index = np.repeat(np.arange(len(concepts), dtype=np.int32), counts)
    if not len(index):
        return [0.0] * len(concepts)
    held_out = np.array([concept.validation for concept in concepts], bool)[index]
    if held_out.all():
        return [0.0] * len(concepts)
    ones = np.ones(len(index), np.int32)
    paths = [""] * len(index)
    dataset = Dataset(concepts, paths, index, ones, ones, [], held_out=held_out)
    return np.bincount(index, dataset.repeats, len(concepts)).tolist()


@dataclass(frozen=True)
class PreviewLook:
    """image: as it is trained. title: which variant it is."""

    image: Image.Image
    title: str


def preview_looks(config: TrainConfig, number: int, path: str, side: int) -> list[PreviewLook]:
    """The image at `path` with each augmentation that concept `number` trains, the original first, then what conditions
    make of it, such as its masks.

    Of a video it is the first frame. side: maximum side of a preview, in pixels.
    Raises ImageError if the image can't be read, and DataError like `read_crop`.
    """
    concept = config.concepts[number]
    if is_video(path) and clip_rule(config):
        picture = next(read_frames(path, [0.0]))
        crop = read_crop(concept, path, picture.size)
        width, height = _trained_size(config.data, concept, picture.size if crop is None else crop.size)
    else:
        whole = read_size(path)
        crop = read_crop(concept, path, whole)
        width, height = _trained_size(config.data, concept, whole if crop is None else crop.size)
        picture = load_image(path, at_least=(width, height) if crop is None else None)
    picture = picture if crop is None else crop.of(picture)
    augmentation = concept.augmentation
    looks = [("as it is", NO_AUGMENTATION)]
    fixed = fixed_augmentation(augmentation)
    if augmentation.is_on and not concept.validation:
        # identical to the training's: drawn with the same seed and file name
        name, num_variants = os.path.basename(path), min(config.data.augmentation_variants, MAX_SHOWN)
        looks += [
            (f"variant {n + 1}", draw_augmentation(augmentation, config.seed, name, n)) for n in range(num_variants)
        ]
    elif fixed != NO_AUGMENTATION:
        looks.append(("as trained", fixed))
    shown = []
    for title, look in looks:
        image = adjust_colors(fit_image(picture, width, height, look), look)
        shown.append(PreviewLook(fit_inside(image, side, side), f"{title}, {width} x {height}"))
    for name in load_families()[config.family].conditions if facts_of(config).uses_denoiser else ():
        looks_of = condition_class(name).previews(config, number, path, picture, (width, height))
        shown += [
            PreviewLook(fit_inside(look, side, side), title) for title, look in itertools.islice(looks_of, MAX_SHOWN)
        ]
    return shown


def preview_captions(config: TrainConfig, number: int, path: str) -> list[str]:
    """The different captions that concept `number` uses for the image at `path` in the first epochs.

    If the clips of a video have different ones, each starts with the time of its clip.
    Raises UserError if the caption or the video can't be read.
    """
    concept = replace(config.concepts[number], enabled=True)
    table = read_table(concept, f"concepts.{number}") if concept.captions == "table" else None
    rule = clip_rule(config)
    if rule is None or not is_video(path):
        return _drawn_captions(config, concept, path, read_captions(path, concept, table) or ("",))
    info = read_info(path, concept.frame_folders_fps)
    spans = [clip.span for clip in clips_of(info, rule, os.path.basename(path))]
    options = {span: read_captions(path, concept, table, span) or ("",) for span in spans}
    if len(set(options.values())) == 1:
        return _drawn_captions(config, concept, path, options[spans[0]])
    drawn = {span: _drawn_captions(config, concept, path, options[span]) for span in spans}
    return [f"{span} {text or '(no caption)'}" for span in spans for text in drawn[span]]


def _drawn_captions(config: TrainConfig, concept: ConceptConfig, path: str, options: tuple[str, ...]) -> list[str]:
    """What is drawn from these alternatives in the first epochs."""
    one = np.ones(1, np.int32)
    dataset = Dataset([concept], [path], np.zeros(1, np.int32), one, one, [])
    # While a text encoder trains, captions are not cached, so each use has a new order.
    text_trains = facts_of(config).trains_text(config)
    variants = None if text_trains else config.data.caption_variants
    source = CaptionSource(dataset, [options], config.seed, variants, words=trained_words(config))
    drawn = dict.fromkeys(source.draw(0, epoch, 0) for epoch in range(4 * MAX_SHOWN))
    return list(drawn)[:MAX_SHOWN]


def _trained_size(data: DataConfig, concept: ConceptConfig, size: tuple[int, int]) -> tuple[int, int]:
    """The width and height in pixels at which an image of this size is trained, at the concept's first resolution."""
    width, height = np.array([size[0]]), np.array([size[1]])
    resolution = resolutions_of(concept, data)[0]
    rule = data.bucket_step, data.max_aspect, data.bucketing, not data.no_upscale, data.max_side, data.fixed_shape
    return assign_buckets(width, height, resolution, *rule).shapes[0]
