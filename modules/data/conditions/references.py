"""Reference images: what a model sees beside the caption, such as an image before the edit that it should learn.

The references of `people/ann.jpg` are the images `people/ann.*` in the concept's reference folder, or `people/ann_0.*`,
`people/ann_1.*` and so on, in this order. They are encoded like the image itself and cached with it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL.Image import Resampling

from modules.config.counted import counted
from modules.data.Augmentation import NO_AUGMENTATION, Augmentation
from modules.data.conditions.ConditionData import ConditionData
from modules.data.crops import SampleCrop, crop_of_sample, whole_size
from modules.data.Dataset import Column
from modules.data.errors import DataError, ImageError
from modules.data.image_views import augmentation_of
from modules.data.images import adjust_colors, fit_image, load_image, size_or_reason, to_array
from modules.data.paired_files import find_paired
from modules.data.videos import load_still
from modules.families.conditions import Layers, References

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image
    from torch import Tensor

    from modules.config.TrainConfig import TrainConfig
    from modules.data.buckets import Buckets
    from modules.data.conditions.ConditionData import Decoded, Rows
    from modules.data.Dataset import Dataset
    from modules.data.ImageRequest import ImageRequest
    from modules.data.LatentEncoder import LatentEncoder
    from modules.families.Family import Family

NUM_READERS = 8
SHORTEST = 64  # pixels of a side; FLUX.2's pipeline refuses shorter ones
REFERENCE = "reference"  # of the column of a dataset: the References of each sample
RECORD = "reference."  # starts the names of references in a cache entry


@dataclass(frozen=True)
class Reference:
    """An image that the model sees. width, height: of the upright image, in pixels."""

    path: str
    width: int
    height: int


@dataclass(frozen=True)
class ReferenceView:
    """How a model sees the reference of an image.

    Those with the aspect ratio of the image are cropped and augmented like it, so that their pixels stay aligned.
    size: for the denoiser, width and height in pixels. text_size: for the text encoders; None if they don't see it.
    is_stretched: whether it is resized without cropping. crop: of the image, if it holds for the reference, too.
    """

    path: str
    size: tuple[int, int]
    text_size: tuple[int, int] | None
    augmentation: Augmentation
    is_stretched: bool
    crop: SampleCrop | None = None

    def key_part(self, content: str | None) -> list[object]:
        """What determines the pixels that the text encoders see. content: hash of the file."""
        look = [self.augmentation.cache_key_part, self.is_stretched, *([self.crop.crop] if self.crop else [])]
        return [content, *self.size, *(self.text_size or ()), *look]


class _References(ConditionData[References]):
    folder_setting = "reference_folder"

    @property
    def is_image_itself(self) -> bool:
        """Whether the only reference is the image itself, which is decomposed into layers (layers.py)."""
        return self.family.condition(Layers) is not None

    def find(self, dataset: Dataset, config: TrainConfig) -> Dataset:
        return dataset if self.is_image_itself else with_references(dataset, self.family)

    def describe(self, dataset: Dataset) -> tuple[str, str] | None:
        if (references := dataset.column(REFERENCE)) is None:
            return None
        images = dataset.images_of(range(len(dataset)))
        num_with = sum(bool(references[image]) for image in images)
        text = f"{num_with} of {counted(len(images), 'image has', 'images have')} reference images"
        return "References", text

    def apart(self, dataset: Dataset, buckets: Buckets) -> Sequence[Hashable] | None:
        if dataset.column(REFERENCE) is None:
            return None
        samples = range(len(dataset))
        return [tuple(view.size for view in reference_views(dataset, buckets, n, self.family)) for n in samples]

    def cached_pixels(self, dataset: Dataset, sample: int, pixels: float) -> float:
        size = self.spec.size(1.0) if self.spec.size else None
        return len(references_of(dataset, sample)) * (math.prod(size) if size else pixels)

    def key_parts(
        self, dataset: Dataset, buckets: Buckets, sample: int, contents: Mapping[str, str | None]
    ) -> list[object]:
        references = references_of(dataset, sample)
        if not references:
            return []
        listed = [[contents[one.path], one.width, one.height] for one in references]
        if self.spec.size:  # else sizes follow from what is in the key
            views = reference_views(dataset, buckets, sample, self.family)
            listed = [[*part, *view.size] for part, view in zip(listed, views, strict=True)]
        return [{"references": listed}]

    def load(self, dataset: Dataset, buckets: Buckets, sample: int, mask: np.ndarray | None) -> list[np.ndarray]:
        return load_references(dataset, buckets, sample, self.family)

    def encode(self, decoded: Decoded, latents: Tensor, encoder: LatentEncoder) -> dict[str, Tensor]:
        import torch

        arrays = enumerate(decoded.loaded[self.spec.name])
        return {f"{RECORD}{number}": encoder.encode(torch.from_numpy(array)[None])[0] for number, array in arrays}

    def text_key_parts(
        self, dataset: Dataset, buckets: Buckets, sample: int, contents: Mapping[str, str | None]
    ) -> list[object]:
        views = reference_views(dataset, buckets, sample, self.family)
        return [{"references": [view.key_part(contents[view.path]) for view in views]}]

    def images_of_text(self, dataset: Dataset, buckets: Buckets, sample: int) -> list[Image]:
        return load_references_of_text(dataset, buckets, sample, self.family)

    def given(self, rows: Rows) -> dict[str, Tensor | list[list[Tensor]]]:
        found = [references_in(record) for record in rows.records]
        return {"references": found} if any(found) else {}

    def sample_settings(self, dataset: Dataset, sample: int) -> dict[str, Any]:
        references = references_of(dataset, sample)
        return {"reference": "\n".join(one.path for one in references)} if references else {}

    def why_too_few(self, num_images: int) -> str:
        is_lacking = self.spec.needed and not num_images and not self.is_image_itself
        return "starts from an image; name one." if is_lacking else ""

    def sample_arguments(self, request: ImageRequest, count: int) -> dict[str, Any]:
        if not request.references or self.is_image_itself:
            return {}
        images = [self._sample_image(path, request) for path in request.references]
        return {self.spec.argument: images[0] if self.spec.most == 1 else images}

    def _sample_image(self, path: str, request: ImageRequest) -> Image:
        """A reference in the size that training uses."""
        image = load_still(path)
        if self.spec.size:
            return image  # the pipeline resizes it
        shape = request.width or image.width, request.height or image.height
        if self.spec.has_shape_of_image:
            return fit_image(image, *shape)
        return fit_image(image, *reference_size(image.size, shape, shape, self.family.align))


def with_references(dataset: Dataset, family: Family) -> Dataset:
    """Adds reference images to a dataset without views, and removes the images of which one can't be read.

    Images without references are trained without, unless the family needs one.
    Raises DataError if a reference folder does not exist or holds references of none of the images, if an image has
    more references than the family takes or none where it needs one, or if no image is left.
    """
    spec = family.condition(References)
    assert spec is not None  # callers ask only then
    has_folder = any(concept.enabled and concept.reference_folder for concept in dataset.concepts)
    if not has_folder and not spec.needed:
        return dataset
    found = find_paired(dataset, "reference_folder", "reference", "reference images")
    lacking = [path for path, references in zip(dataset.paths, found, strict=True) if not references]
    if lacking and spec.needed:
        raise DataError(
            f"{counted(len(lacking), 'image has', 'images have')} no reference image, such as {lacking[0]}, but "
            f"{family.label} needs one for each: add images of the same names to the reference folder, or remove these."
        )
    for path, references in zip(dataset.paths, found, strict=True):
        if len(references) > spec.most:
            raise DataError(
                f"{path} has {len(references)} reference images, such as {references[-1]}, but {family.label} takes "
                f"{spec.most}: remove some, or choose another family."
            )
    unique = list(dict.fromkeys(path for references in found for path in references))
    with ThreadPoolExecutor(NUM_READERS) as readers:
        sizes = dict(zip(unique, readers.map(size_or_reason, unique), strict=True))
    kept: list[int] = []
    lost: list[tuple[str, str]] = []
    read: list[tuple[Reference, ...]] = []
    for sample, references in enumerate(found):
        reasons = [(path, size) for path in references if isinstance(size := sizes[path], str)]
        if reasons:
            path, reason = reasons[0]
            lost.append((dataset.paths[sample], f"its reference {path} can't be read: {reason}"))
        else:
            kept.append(sample)
            read.append(tuple(Reference(path, *_size(sizes[path])) for path in references))
    if not kept:
        raise DataError(f"none of the references can be read, such as that of {lost[0][0]}: repair or remove them.")
    column = Column(read, files=_paths, identity=lambda references: (Path(path).name for path in _paths(references)))
    return dataset.take(kept, lost).with_column(REFERENCE, column)


def references_of(dataset: Dataset, sample: int) -> tuple[Reference, ...]:
    """The reference images of a sample."""
    return dataset.value(REFERENCE, sample) or ()


def _paths(references: Sequence[Reference]) -> list[str]:
    return [reference.path for reference in references]


def load_references(dataset: Dataset, buckets: Buckets, sample: int, family: Family) -> list[np.ndarray]:
    """The references of a sample for its denoiser, as float32[3, H, W] in [-1, 1]. Raises ImageError."""
    try:
        return [to_array(_load(view)) for view in reference_views(dataset, buckets, sample, family)]
    except ImageError as error:
        raise ImageError(error.path, f"its reference {error.path} can't be read: {error.reason}") from error


def load_references_of_text(dataset: Dataset, buckets: Buckets, sample: int, family: Family) -> list[Image]:
    """The references of a sample for text encoders that see them. Raises ImageError."""
    views = reference_views(dataset, buckets, sample, family)
    return [_resized(_load(view), view.text_size or view.size) for view in views]


def reference_views(dataset: Dataset, buckets: Buckets, sample: int, family: Family) -> list[ReferenceView]:
    """How the model sees each reference of a sample."""
    size, shape = whole_size(dataset, sample), buckets.shape_of(sample)
    spec = family.condition(References)
    size_for = spec.size if spec else None
    is_cropped, is_control = spec is not None and spec.has_shape_of_image, spec is not None and spec.is_control
    of_image = augmentation_of(dataset, sample)
    views = []
    for reference in references_of(dataset, sample):
        own = reference.width, reference.height
        is_aligned = is_alike(own, size)
        width, height = shape if is_aligned else own
        of_denoiser = size_for and size_for(width / height)
        if of_denoiser is None:
            width, height = shape if is_cropped else reference_size(own, size, shape, family.align)
        of_text = family.text.reference_size and family.text.reference_size(width / height)
        views.append(
            ReferenceView(
                reference.path,
                of_denoiser or (width, height),
                of_text,
                NO_AUGMENTATION if not is_aligned else of_image.without_colors if is_control else of_image,
                # to a size that is nearly of its own shape, as pipelines do it
                is_stretched=of_denoiser is not None and not is_aligned,
                crop=crop_of_sample(dataset, sample) if is_aligned else None,
            )
        )
    return views


def reference_size(
    own: tuple[int, int], of_image: tuple[int, int], shape: tuple[int, int], align: int
) -> tuple[int, int]:
    """The width and height in which a reference is encoded, in pixels, if the family has no sizes of its own.

    With the aspect ratio of the image it is the shape in which the image is trained; otherwise the reference keeps its
    own aspect ratio and about the area of that shape, in multiples of `align`, and is cropped if it is very long.
    own, of_image: width and height of the reference and of the image, as they are on disk.
    """
    if is_alike(own, of_image):
        return shape
    scale = (shape[0] * shape[1] / (own[0] * own[1])) ** 0.5
    width, height = (max(SHORTEST, int(side * scale) // align * align) for side in own)
    return width, height


def _load(view: ReferenceView) -> Image:
    whole = load_image(view.path)
    image = whole if view.crop is None else view.crop.of(whole)
    fitted = _resized(image, view.size) if view.is_stretched else fit_image(image, *view.size, view.augmentation)
    return adjust_colors(fitted, view.augmentation)


def _resized(image: Image, size: tuple[int, int]) -> Image:
    return image if image.size == size else image.resize(size, Resampling.LANCZOS)


def references_in(record: Mapping[str, Tensor]) -> list[Tensor]:
    """The references of a cache entry, in order."""
    return [record[name] for name in sorted(record, key=_number) if name.startswith(RECORD)]


def _size(size: tuple[int, int] | str) -> tuple[int, int]:
    assert not isinstance(size, str)
    return size


def is_alike(own: Sequence[int], size: Sequence[int]) -> bool:
    """Whether two sizes have the same aspect ratio; the sides of a scaled image are rounded to whole pixels."""
    return abs(own[0] * size[1] - own[1] * size[0]) <= max(*own, *size)


def _number(name: str) -> int:
    return int(name.removeprefix(RECORD)) if name.startswith(RECORD) else -1


CONDITION = _References
