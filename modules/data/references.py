"""Reference images: what a model sees beside the caption, such as an image before the edit that it should learn.

The references of `people/ann.jpg` are the images `people/ann.*` in the concept's reference folder, or `people/ann_0.*`,
`people/ann_1.*` and so on, in this order. They are encoded like the image itself and cached with it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PIL.Image import Resampling

from modules.config.counted import counted
from modules.data.Augmentation import NO_AUGMENTATION, Augmentation
from modules.data.clips import clip_of
from modules.data.concepts import as_prompt
from modules.data.Dataset import Column
from modules.data.errors import DataError
from modules.data.image_formats import EXTENSIONS
from modules.data.image_views import augmentation_of
from modules.data.images import adjust_colors, fit_image, load_image, size_or_reason, to_array
from modules.data.masks import mask_of
from modules.data.paired_files import find_paired
from modules.data.videos import frame_path, info_or_reason, is_video, split_time

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image
    from torch import Tensor

    from modules.config.SamplingConfig import SamplingConfig
    from modules.data.buckets import Buckets
    from modules.data.Dataset import Dataset
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
    is_stretched: whether it is resized without cropping.
    """

    path: str
    size: tuple[int, int]
    text_size: tuple[int, int] | None
    augmentation: Augmentation
    is_stretched: bool

    def key_part(self, content: str | None) -> list[object]:
        """What determines the pixels that the text encoders see. content: hash of the file."""
        return [content, *self.size, *(self.text_size or ()), self.augmentation.cache_key_part, self.is_stretched]


def with_references(dataset: Dataset, family: Family) -> Dataset:
    """Adds reference images to a dataset without views, and removes the images of which one can't be read.

    Images without references are trained without, unless the family needs one.
    Raises DataError if a reference folder does not exist or holds references of none of the images, if an image has
    more references than the family takes or none where it needs one, or if no image is left.
    """
    has_folder = any(concept.enabled and concept.reference_folder for concept in dataset.concepts)
    if not has_folder and not family.needs_references:
        return dataset
    found = find_paired(dataset, "reference_folder")
    lacking = [path for path, references in zip(dataset.paths, found, strict=True) if not references]
    if lacking and family.needs_references:
        raise DataError(
            f"{counted(len(lacking), 'image has', 'images have')} no reference image, such as {lacking[0]}, but "
            f"{family.label} needs one for each: add images of the same names to the reference folder, or remove these."
        )
    for path, references in zip(dataset.paths, found, strict=True):
        if len(references) > family.max_references:
            raise DataError(
                f"{path} has {len(references)} reference images, such as {references[-1]}, but {family.label} takes "
                f"{family.max_references}: remove some, or choose another family."
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
    return [to_array(_load(view)) for view in reference_views(dataset, buckets, sample, family)]


def load_references_of_text(dataset: Dataset, buckets: Buckets, sample: int, family: Family) -> list[Image]:
    """The references of a sample for text encoders that see them. Raises ImageError."""
    views = reference_views(dataset, buckets, sample, family)
    return [_resized(_load(view), view.text_size or view.size) for view in views]


def reference_views(dataset: Dataset, buckets: Buckets, sample: int, family: Family) -> list[ReferenceView]:
    """How the model sees each reference of a sample."""
    size, shape = (int(dataset.widths[sample]), int(dataset.heights[sample])), buckets.shape_of(sample)
    views = []
    for reference in references_of(dataset, sample):
        own = reference.width, reference.height
        is_aligned = is_alike(own, size)
        width, height = shape if is_aligned else own
        of_denoiser = family.reference_size and family.reference_size(width / height)
        if of_denoiser is None:
            width, height = reference_size(own, size, shape, family.align)
        of_text = family.text.reference_size and family.text.reference_size(width / height)
        views.append(
            ReferenceView(
                reference.path,
                of_denoiser or (width, height),
                of_text,
                augmentation_of(dataset, sample) if is_aligned else NO_AUGMENTATION,
                # to a size that is nearly of its own shape, as pipelines do it
                is_stretched=of_denoiser is not None and not is_aligned,
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
    image = load_image(view.path)
    fitted = _resized(image, view.size) if view.is_stretched else fit_image(image, *view.size, view.augmentation)
    return adjust_colors(fitted, view.augmentation)


def _resized(image: Image, size: tuple[int, int]) -> Image:
    return image if image.size == size else image.resize(size, Resampling.LANCZOS)


def of_captions(
    dataset: Dataset, texts: Sequence[tuple[str, ...]], family: Family, unusable: Collection[int] = ()
) -> tuple[dict[str, str], dict[str, str]]:
    """First caption of an image -> its references, as `image_files` takes them, and -> its mask, for inpainting.

    For families that need a first frame: caption -> that of its first clip, and the last one if they need it. For
    inpainting, and where images are decomposed into layers: caption -> the image itself. Captions are as from
    `caption_prompts`, and the name of its concept stands for that of an image without one.
    texts: as from `captions`. unusable: samples that are left out.
    """
    found: dict[str, str] = {}
    masks: dict[str, str] = {}
    for sample, options in enumerate(texts):
        concept = dataset.concepts[dataset.concept_index[sample]]
        prompt = as_prompt(options[0], dataset.concepts) if options[0] else concept.name
        if prompt in found or sample in unusable:
            continue
        if family.needs_first_frame:
            found[prompt] = "\n".join(_ends(dataset, sample, family))
        elif family.inpainting:
            found[prompt] = dataset.paths[sample]
            masks[prompt] = mask_of(dataset, sample) or ""
        elif family.layered:
            found[prompt] = dataset.paths[sample]
        elif references := references_of(dataset, sample):
            found[prompt] = "\n".join(one.path for one in references)
    return found, masks


def _ends(dataset: Dataset, sample: int, family: Family) -> list[str]:
    """The first frame of a sample's clip, and the last one if the family needs it."""
    path, clip = dataset.paths[sample], clip_of(dataset, sample)
    if clip is None:
        return [path]
    times = [clip.times[0], clip.times[-1]] if family.needs_last_frame else [clip.start]
    return [frame_path(path, seconds, clip.folder_fps) for seconds in times]


def image_files(path: str) -> list[str]:
    """The image at `path`, or several of them, one a line; of a folder all its images, by name.

    Raises DataError if a folder has none.
    """
    if "\n" in path:
        return [file for line in path.split("\n") for file in image_files(line)]
    path = os.path.expanduser(path)
    if not os.path.isdir(path):
        return [path]
    names = sorted(name for name in os.listdir(path) if os.path.splitext(name)[1].lower() in EXTENSIONS)
    if not names:
        raise DataError(f"{path} holds no images: choose an image, or a folder with some.")
    return [os.path.join(path, name) for name in names]


def check_sample_references(sampling: SamplingConfig, family: Family) -> None:
    """Raises DataError if references of enabled samples can't be used; families that take none ignore them.

    That samples have one where the family needs it is up to the validation of the settings.
    """
    for number, sample in enumerate(sampling.samples) if family.max_input_images else ():
        if sample.enabled and sample.reference:
            setting, files = f"sampling.samples.{number}.reference", image_files(sample.reference)
            named = f"{setting} {sample.reference}"
            if sample.last_frame and family.takes_last_frame:
                named += f" with last_frame {sample.last_frame}"
                files += image_files(sample.last_frame)
            if refused := refused_references(files, family):
                raise DataError(f"{named}: {refused}", setting)
        if sample.enabled and family.inpainting:
            check_mask(sample.mask, sample.reference, family, f"sampling.samples.{number}.mask", "reference")


def refused_references(files: Sequence[str], family: Family | None) -> str:
    """Why a model of `family` (None: unknown) can't see these images, as a clause with the remedy; "" if it can.

    A video stands for its first frame, as the last image for the one where the sample ends, unless a time is named.
    """
    if family and family.needs_first_frame and not files:
        return f"{family.label} makes videos of images; name one."
    if family and family.needs_last_frame and len(files) == 1:
        return f"{family.label} makes videos between two images; name the last one, too."
    if family and family.needs_references and not files:
        return f"{family.label} {'decomposes images' if family.layered else 'edits images'}; name one."
    if files and (family is None or not family.max_input_images):
        return f"{family.label if family else 'this model'} takes no reference images; leave it out."
    if family and len(files) > family.max_input_images:
        return f"these are {len(files)} images, but {family.label} takes {family.max_input_images}."
    for path in files:
        file, _ = split_time(path)
        reason = info_or_reason(file) if is_video(file) else size_or_reason(file)
        if isinstance(reason, str):
            return f"{path} can't be read ({reason}); choose another image."
    return ""


def check_mask(mask: str, reference: str, family: Family | None, setting: str, image_setting: str) -> None:
    """Raises DataError if a model of `family` can't paint what `mask` shows.

    setting, image_setting: of the mask and of the image, as named in messages.
    """
    if not mask:
        return
    if family is None or not family.inpainting:
        raise DataError.at(setting, f"{mask}: {family.label if family else 'this model'} takes no mask; leave it out.")
    if not reference:
        raise DataError.at(
            setting, f"{mask}: there is no image to paint in; set {image_setting}, or leave the mask out."
        )
    if isinstance(reason := size_or_reason(os.path.expanduser(mask)), str):
        raise DataError.at(setting, f"{mask}: it can't be read ({reason}); choose another mask.")


def references_in(record: Mapping[str, Tensor]) -> list[Tensor]:
    """The references of a cache entry, in order."""
    return [record[name] for name in sorted(record, key=_number) if name.startswith(RECORD)]


def describe_references(dataset: Dataset) -> str | None:
    """How many images have references; None if the run has no reference folder."""
    if (references := dataset.column(REFERENCE)) is None:
        return None
    images = dataset.images_of(range(len(dataset)))
    num_with = sum(bool(references[image]) for image in images)
    return f"{num_with} of {counted(len(images), 'image has', 'images have')} reference images"


def _size(size: tuple[int, int] | str) -> tuple[int, int]:
    assert not isinstance(size, str)
    return size


def is_alike(own: Sequence[int], size: Sequence[int]) -> bool:
    """Whether two sizes have the same aspect ratio; the sides of a scaled image are rounded to whole pixels."""
    return abs(own[0] * size[1] - own[1] * size[0]) <= max(*own, *size)


def _number(name: str) -> int:
    return int(name.removeprefix(RECORD)) if name.startswith(RECORD) else -1
