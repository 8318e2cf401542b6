"""Mask images: white marks what is learned of an image, or painted by a model for inpainting. Uses Pillow only.

They lie beside the images, with the names of `mask_names.py`, or in a folder of their own, and are never trained on as
images. For models that see the mask of each frame, those in a folder can also be videos and folders of frames
(mask_clips.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from modules.config.counted import counted
from modules.config.families import load_families
from modules.config.methods import facts_of
from modules.data.Augmentation import NO_AUGMENTATION, Augmentation
from modules.data.captions import file_stem, path_in_concept
from modules.data.crops import whole_size
from modules.data.Dataset import Column
from modules.data.errors import DataError, ImageError
from modules.data.image_formats import EXTENSIONS
from modules.data.images import fit_image, load_alpha, load_gray_on_black, may_be_transparent, size_or_reason
from modules.data.mask_names import SUFFIXES, masked_stem
from modules.data.videos import EXTENSIONS as VIDEO_EXTENSIONS
from modules.data.videos import info_or_reason, is_video

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.data.crops import SampleCrop
    from modules.data.Dataset import Dataset

NUM_READERS = 8
MASK = "mask"  # of the column of a dataset: the path of each sample's mask, None for an image without one


def uses_masks(config: TrainConfig) -> bool:
    """Whether a run reads masks: for masked training, or because its model paints a part of an image."""
    return (config.loss.masked_training or needs_masks(config)) and facts_of(config).uses_denoiser


def needs_masks(config: TrainConfig) -> bool:
    """Whether the model sees masks itself."""
    return load_families()[config.family].takes_masks


def sees_mask_clips(config: TrainConfig) -> bool:
    """Whether the model sees the mask of each frame of a clip."""
    return load_families()[config.family].takes_mask_clips and facts_of(config).uses_denoiser


def with_masks(dataset: Dataset, clips: bool = False) -> Dataset:
    """Adds masks to a dataset without views, and removes the images whose mask can't be read.

    clips: whether masks can be clips. Raises DataError if the aspect ratio of a mask differs from its image's, if an
    image has a clip as its mask, or if no image is left.
    """
    masks = _or_alpha(dataset, find_masks(dataset, clips))
    of_mask = {mask: sample for sample, mask in enumerate(masks) if mask}
    reasons: dict[str, str] = {}
    with ThreadPoolExecutor(NUM_READERS) as readers:
        sizes = readers.map(partial(_size_or_reason, dataset), of_mask, of_mask.values())
        for (mask, sample), size in zip(of_mask.items(), sizes, strict=True):
            if is_mask_clip(mask) and not is_video(dataset.paths[sample]):
                raise DataError(f"mask {mask} is a video and {dataset.paths[sample]} an image: replace it by an image.")
            if isinstance(size, str):
                reasons[mask] = f"its mask {os.path.basename(mask)} can't be read: {size}"
            else:
                _check_aspect(mask, size, dataset.paths[sample], whole_size(dataset, sample))
    kept = [sample for sample, mask in enumerate(masks) if mask not in reasons]
    if not kept:
        raise DataError(f"none of the masks can be read, such as {next(iter(reasons))}: repair or remove them.")
    lost = [(path, reasons[mask]) for path, mask in zip(dataset.paths, masks, strict=True) if mask in reasons]
    column = Column(masks, files=lambda mask: [mask] if mask else [])
    return dataset.with_column(MASK, column).take(kept, lost)


def mask_of(dataset: Dataset, sample: int) -> str | None:
    """The path of a sample's mask; None if it is trained without one."""
    return dataset.value(MASK, sample)


def mask_files(dataset: Dataset) -> set[str]:
    """The files that are read as masks; not images whose alpha channel is the mask."""
    pairs = zip(dataset.column(MASK) or (), dataset.paths, strict=False)
    return {mask for mask, path in pairs if mask and mask != path}


def find_masks(dataset: Dataset, clips: bool = False) -> list[str | None]:
    """The path of each sample's mask, None if it has none. clips: whether those in a mask folder can be clips.

    Raises DataError if a mask folder does not exist or holds masks of none of the images.
    """
    numbers = dataset.concept_index.tolist()
    roots = {number: _mask_root(dataset.concepts[number], number) for number in set(numbers)}
    in_folder: dict[str, dict[str, str]] = {}
    masks: list[str | None] = []
    for path, number in zip(dataset.paths, numbers, strict=True):
        folder, root = os.path.dirname(path), roots[number]
        if root:
            folder = os.path.join(root, os.path.dirname(path_in_concept(path, dataset.concepts[number])))
        if folder not in in_folder:
            holds_frames = clips and dataset.concepts[number].frame_folders_fps is not None
            in_folder[folder] = masks_in_folder(folder, clips, holds_frames) if root else _masks_in(folder)
        stem = file_stem(path)
        masks.append(in_folder[folder].get(stem) or in_folder[folder].get(stem.lower()))
    for number, root in sorted(roots.items()):
        concept = dataset.concepts[number]
        of_concept = [mask for mask, index in zip(masks, numbers, strict=True) if index == number]
        if root and not any(of_concept):
            raise DataError.at(
                f"concepts.{number}.mask_folder",
                f"{concept.mask_folder}: it holds a mask of none of the "
                f"{counted(len(of_concept), 'image')}; name masks like the images.",
            )
    return masks


def mask_beside(path: str) -> str:
    """The mask next to the image at `path`; "" if there is none."""
    stem, found = file_stem(path), _masks_in(os.path.dirname(path) or ".")
    return found.get(stem) or found.get(stem.lower()) or ""


def mask_files_of(image: str, folder: str = "") -> list[str]:
    """The mask files of the image at `image`: the one that is read, then the one that is read once that has gone, and
    so on. A file that has exactly the name of another image is only that one's.

    folder: of masks; "": they lie beside the image. Raises DataError if the folder can't be listed.
    """
    beside, stem = os.path.dirname(image) or ".", file_stem(image)
    names = _listed(folder) if folder else sorted(os.listdir(beside))
    found: list[str] = []
    others = {file_stem(name) for name in (os.listdir(beside) if folder else names) if masked_stem(name) is None}
    while True:
        of_stems = _named(folder, names) if folder else _beside(beside, names)
        mask = of_stems.get(stem) or of_stems.get(stem.lower())
        if not mask:
            return found
        name = os.path.basename(mask)
        names.remove(name)
        own_stem = masked_stem(name) or file_stem(name)
        if own_stem == stem or own_stem not in others:
            found.append(mask)


def unused_masks_warning(config: TrainConfig, dataset: Dataset) -> str | None:
    """A warning if masks are skipped or named although masked training is off."""
    if uses_masks(config):
        return None
    for number, concept in enumerate(dataset.concepts):
        if concept.enabled and (concept.mask_folder or concept.alpha_mask):
            name = "mask_folder" if concept.mask_folder else "alpha_mask"
            return f"concepts.{number}.{name}: its masks are not used; turn on loss.masked_training, or reset it."
    if not dataset.num_masks:
        return None
    return (
        f"{counted(dataset.num_masks, 'image is', 'images are')} skipped as masks because of their names: turn on "
        "loss.masked_training to use them, or rename them."
    )


def load_mask(
    path: str,
    size: tuple[int, int],
    bucket_w: int,
    bucket_h: int,
    augmentation: Augmentation = NO_AUGMENTATION,
    is_alpha: bool = False,
    crop: SampleCrop | None = None,
) -> np.ndarray:
    """The mask as float32[1, H, W] in 0..1, cropped and fitted to the bucket like its image.

    size: of the upright image before it is cropped; a mask of another size is scaled to it first.
    is_alpha: whether the mask is the alpha channel of the image at `path`.
    crop: of the image.
    Raises ImageError.
    """
    mask = load_alpha(path) if is_alpha else load_gray_on_black(path)
    return fit_mask(mask, size, bucket_w, bucket_h, augmentation, crop)


def fit_mask(
    mask: Image.Image,
    size: tuple[int, int],
    bucket_w: int,
    bucket_h: int,
    augmentation: Augmentation = NO_AUGMENTATION,
    crop: SampleCrop | None = None,
) -> np.ndarray:
    """As `load_mask`, of a mask in 8 bits."""
    if mask.size != size:
        mask = mask.resize(size, Image.Resampling.BILINEAR)
    mask = mask if crop is None else crop.of(mask)
    fitted = np.asarray(fit_image(mask, bucket_w, bucket_h, augmentation), np.float32)
    return fitted[None] / 255


def _or_alpha(dataset: Dataset, masks: list[str | None]) -> list[str | None]:
    """The masks, with the path of the image itself where its alpha channel is the mask."""
    wanted = [dataset.concepts[number].alpha_mask for number in dataset.concept_index.tolist()]
    asked = [
        sample
        for sample, mask in enumerate(masks)
        if wanted[sample] and mask is None and not is_video(dataset.paths[sample])
    ]
    with ThreadPoolExecutor(NUM_READERS) as readers:
        paths = [dataset.paths[sample] for sample in asked]
        own = {sample for sample, is_own in zip(asked, readers.map(_is_transparent, paths), strict=True) if is_own}
    return [dataset.paths[sample] if sample in own else mask for sample, mask in enumerate(masks)]


def _is_transparent(path: str) -> bool:
    try:
        return may_be_transparent(path)
    except ImageError:  # it has changed since its size was read; training leaves it out
        return False


def _mask_root(concept: ConceptConfig, number: int) -> str:
    """The concept's mask folder; "" if its masks lie beside the images."""
    root = os.path.expanduser(concept.mask_folder)
    if root and not os.path.isdir(root):
        problem = "is not a folder" if os.path.exists(root) else "does not exist"
        raise DataError.at(
            f"concepts.{number}.mask_folder",
            f"{concept.mask_folder}: {problem}; choose a folder of masks, or empty it.",
        )
    return root


def masks_in_folder(folder: str, clips: bool = False, folders: bool = False) -> dict[str, str]:
    """Stem of each image in a mask folder, also in lower case and without the suffix of masks, -> its path.

    clips: also of videos. folders: also the names of folders. Raises DataError if the folder can't be listed.
    """
    names = _listed(folder)
    found = {
        name: os.path.join(folder, name) for name in names if folders and os.path.isdir(os.path.join(folder, name))
    }
    videos = [name for name in names if clips and os.path.splitext(name)[1].lower() in VIDEO_EXTENSIONS]
    found |= {os.path.splitext(name)[0]: os.path.join(folder, name) for name in videos}
    return {stem.lower(): path for stem, path in found.items()} | found | _named(folder, names)


def _listed(folder: str) -> list[str]:
    """Raises DataError."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        message = f"The mask folder {folder} can't be listed ({error.strerror}): change its permissions."
        raise DataError(message) from error


def _named(folder: str, names: Sequence[str]) -> dict[str, str]:
    """As `masks_in_folder`, of these sorted names."""
    images = [name for name in names if os.path.splitext(name)[1].lower() in EXTENSIONS]
    stems = {masked_stem(name) or os.path.splitext(name)[0]: os.path.join(folder, name) for name in images}
    return {stem.lower(): path for stem, path in stems.items()} | stems


def _masks_in(folder: str) -> dict[str, str]:
    """Stem of an image (also in lower case) -> path of its mask; of several masks, the one whose suffix comes first."""
    return _beside(folder, sorted(os.listdir(folder)))


def _beside(folder: str, names: Sequence[str]) -> dict[str, str]:
    """As `_masks_in`, of these sorted names."""
    found: dict[str, str] = {}
    for suffix in reversed(SUFFIXES):
        for name in names:
            stem = masked_stem(name)
            if stem is not None and os.path.splitext(name)[0].lower() == stem.lower() + suffix:
                found[stem] = os.path.join(folder, name)
    return {stem.lower(): path for stem, path in found.items()} | found


def is_mask_clip(path: str) -> bool:
    """Whether a mask is a clip; animated GIFs are images here."""
    return is_video(path) and os.path.splitext(path)[1].lower() not in EXTENSIONS


def _size_or_reason(dataset: Dataset, mask: str, sample: int) -> tuple[int, int] | str:
    if not is_mask_clip(mask):
        return size_or_reason(mask)
    info = info_or_reason(mask, dataset.concepts[dataset.concept_index[sample]].frame_folders_fps)
    return info if isinstance(info, str) else info[:2]


def _check_aspect(mask: str, size: tuple[int, int], image: str, image_size: Sequence[int]) -> None:
    (width, height), (image_w, image_h) = size, map(int, image_size)
    # the sides of a scaled mask are rounded to whole pixels
    if abs(width * image_h - height * image_w) > max(image_w, image_h):
        raise DataError(
            f"mask {mask} is {width} x {height} and its image {os.path.basename(image)} {image_w} x {image_h}: "
            "a mask needs the aspect ratio of its image; save it in the size of the image."
        )
