"""Which images and clips of a concept get a caption: those that training reads, as training reads them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.config.errors import UserError
from modules.data.captions import own_captions
from modules.data.concepts import read_tables, scan
from modules.data.crops import SampleCrop, crop_of_sample
from modules.data.errors import CaptionError
from modules.data.images import load_image
from modules.data.videos import is_video, read_frames, read_info

if TYPE_CHECKING:
    from PIL import Image

    from modules.config.ConceptConfig import ConceptConfig

WRITTEN_TO = ("txt", "table")  # values of `captions` with which a concept's captions are read from files


@dataclass(frozen=True)
class Targets:
    """paths: of those to caption, in the order of their names. num_images: all of the concept. num_captioned: those
    that are left as they are because they have a caption. skipped: (path, reason) of those that can't be read. crops:
    of images of which only a part is trained."""

    paths: tuple[str, ...]
    num_images: int
    num_captioned: int
    skipped: tuple[tuple[str, str], ...]
    crops: Mapping[str, SampleCrop]


def find_targets(
    concept: ConceptConfig, overwrite: bool = False, only: Collection[str] | None = None, videos: bool = False
) -> Targets:
    """What of a concept is to be captioned: images without a caption, or with an empty one.

    overwrite: also those that have one. only: paths to choose among; None for all. videos: whether clips count, too.
    Raises UserError if the concept has no images, or doesn't read captions from files, and DataError like `scan`.
    """
    if concept.captions not in WRITTEN_TO:
        raise UserError(
            f"The captions of {concept.path} are not read from files (captions: {concept.captions}): set it "
            f"to {' or '.join(WRITTEN_TO)} first."
        )
    dataset = scan([concept], videos=videos)
    wanted = None if only is None else {os.path.abspath(os.path.expanduser(path)) for path in only}
    paths = [path for path in dataset.paths if wanted is None or os.path.abspath(path) in wanted]
    if wanted is not None and not paths:
        raise UserError(f"--only: names none of the {len(dataset.paths)} images of {concept.path}.")
    table = read_tables([concept]).get(0)
    skipped = [*dataset.unreadable]
    found, num_captioned = [], 0
    for path in paths:
        try:
            has_caption = not overwrite and any(own_captions(path, concept, table) or ())
        except CaptionError as error:
            skipped.append((path, f"its caption can't be read: {error}"))
            continue
        if has_caption:
            num_captioned += 1
        else:
            found.append(path)
    given = ((path, crop_of_sample(dataset, sample)) for sample, path in enumerate(dataset.paths))
    crops = {path: crop for path, crop in given if crop is not None}
    return Targets(tuple(found), len(paths), num_captioned, tuple(skipped), crops)


def load_frames(
    path: str, num_frames: int, max_side: int, folder_fps: float | None = None, crop: SampleCrop | None = None
) -> Sequence[Image.Image]:
    """The image at `path`, or `num_frames` of a clip at equal distances, scaled down to `max_side` pixels.

    folder_fps: of folders of frames, as in VideoInfo. crop: the part that is trained. Raises ImageError.
    """
    if is_video(path):
        seconds = read_info(path, folder_fps).seconds
        times = [seconds * (number + 0.5) / num_frames for number in range(num_frames)]
        frames = read_frames(path, times, folder_fps)
    else:
        frames = iter([load_image(path, None if crop else (max_side, max_side))])
    return [_scaled(crop.of(frame) if crop else frame, max_side) for frame in frames]


def _scaled(image: Image.Image, max_side: int) -> Image.Image:
    from PIL import Image

    if max(image.size) > max_side:
        image.thumbnail((max_side, max_side), Image.Resampling.LANCZOS)
    return image
