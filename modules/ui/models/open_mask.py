"""The mask of an image of the dataset window while it is painted. No Tk; for use in threads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from modules.curation.color_regions import similar_region
from modules.curation.mask_files import MaskFile
from modules.curation.MaskPainting import MaskPainting
from modules.data.errors import ImageError
from modules.data.images import load_alpha, may_be_transparent
from modules.data.videos import is_video, load_still, read_frames
from modules.ui.models.MaskView import MaskView, reduced

if TYPE_CHECKING:
    from modules.ui.models.CaptionWork import CaptionWork
    from modules.ui.models.DatasetView import DatasetItem


@dataclass
class OpenMask:
    """work: writes it. note: what a person should know of it, as a sentence; "" for nothing."""

    item: DatasetItem
    work: CaptionWork
    file: MaskFile
    view: MaskView
    note: str = ""

    @property
    def painting(self) -> MaskPainting:
        return self.view.painting


def open_mask(item: DatasetItem, work: CaptionWork) -> OpenMask:
    """The mask that training reads, or a black one. Of a video, its first frame is shown.

    Raises ImageError if the image can't be read, and UserError if a file can't.
    """
    concept = work.concept(item.concept)
    if os.path.isdir(item.path):
        picture = next(read_frames(item.path, [0.0], concept.frame_folders_fps))
    else:
        picture = load_still(item.path)
    file, note = MaskFile(item.path, concept), ""
    try:
        values = file.read(picture.size)
    except ImageError as error:
        values, note = None, f"Its mask can't be read ({error.reason}): saving replaces it."
    if values is None:
        values = np.zeros((picture.height, picture.width), np.uint8)
    return OpenMask(item, work, file, MaskView(reduced(picture), MaskPainting(values)), note)


def region_around(view: MaskView, x: int, y: int, tolerance: int) -> np.ndarray:
    """The part of the image around a pixel that is of about its color; bool[H, W] in the size of the mask.

    tolerance: as for `similar_region`.
    """
    picture, (width, height) = view.picture, view.painting.size
    place = x * picture.width // width, y * picture.height // height
    region = similar_region(np.asarray(picture), *place, tolerance)
    if picture.size == (width, height):
        return region
    return np.asarray(Image.fromarray(region).resize((width, height), Image.Resampling.NEAREST))


def transparency(opened: OpenMask) -> np.ndarray:
    """The alpha channel of the image, as uint8[H, W]. Raises ImageError if it has none."""
    path = opened.item.path
    if is_video(path) or not may_be_transparent(path):
        raise ImageError(path, "it has no transparency")
    return np.array(load_alpha(path))
