"""The crops of a dataset's images, which take effect before everything else: an image trains as if it had been saved
like that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.data.captions import path_in_concept
from modules.data.Dataset import Column
from modules.data.errors import DataError
from modules.data.ImageSettings import FILE_NAME, ImageSettings

if TYPE_CHECKING:
    from PIL.Image import Image

    from modules.config.ConceptConfig import ConceptConfig
    from modules.data.Dataset import Dataset
    from modules.data.ImageSettings import Crop

CROP = "crop"  # of the column of a dataset: the SampleCrop of each sample, None for a whole image


@dataclass(frozen=True)
class SampleCrop:
    """The crop of a sample. whole: width and height of the upright image that it is taken from, in pixels."""

    crop: Crop
    whole: tuple[int, int]

    @property
    def size(self) -> tuple[int, int]:
        """Its width and height in pixels."""
        return self.crop.width, self.crop.height

    def of(self, image: Image) -> Image:
        """This part of the image, or of what has its shape, such as its mask."""
        return self.crop.of(image, self.whole)


def with_crops(dataset: Dataset, crops: Sequence[SampleCrop | None]) -> Dataset:
    """The dataset with the crop of each sample, if any has one. Its sizes are those of the crops already."""
    if not any(crops):
        return dataset
    # of a whole image, too: the crop of another one must not look the same
    column = Column(crops, identity=lambda crop: [f"crop {tuple(crop.crop)}" if crop else "whole"])
    return dataset.with_column(CROP, column)


def checked_crop(crop: Crop | None, path: str, whole: tuple[int, int], setting: str = "") -> SampleCrop | None:
    """The crop of the image at `path`, whose upright size is `whole`; None for all of it.

    setting: of the concept's folder, for messages. Raises DataError if it is not inside the image.
    """
    if crop is None or crop == (0, 0, *whole):
        return None
    if not crop.fits(whole):
        text = (
            f"{FILE_NAME} crops {path} to {crop.width} x {crop.height} pixels from ({crop.x}, {crop.y}) on, but the "
            f"image is {whole[0]} x {whole[1]}; change or remove the crop."
        )
        raise DataError.at(setting, f": {text}") if setting else DataError(text)
    return SampleCrop(crop, whole)


def read_crop(concept: ConceptConfig, path: str, whole: tuple[int, int]) -> SampleCrop | None:
    """The crop of the image at `path`, of a concept, as its folder has it now. whole: as for `checked_crop`.

    Raises DataError like that and like `ImageSettings.read`.
    """
    settings = ImageSettings.read(concept.path)
    return checked_crop(settings.of(path_in_concept(path, concept)).crop, path, whole)


def crop_of_sample(dataset: Dataset, sample: int) -> SampleCrop | None:
    """None for a whole image."""
    return dataset.value(CROP, sample)


def whole_size(dataset: Dataset, sample: int) -> tuple[int, int]:
    """Width and height of a sample's upright image before it is cropped, in pixels."""
    if crop := crop_of_sample(dataset, sample):
        return crop.whole
    return int(dataset.widths[sample]), int(dataset.heights[sample])


def cropped(dataset: Dataset, sample: int, image: Image) -> Image:
    """The part of an image that its sample is made of; also of its mask, or of what else has its shape."""
    crop = crop_of_sample(dataset, sample)
    return image if crop is None else crop.of(image)
