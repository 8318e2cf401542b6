"""Finds the images of a run by walking the concepts' folders and reading image sizes, without decoding images.

The position of an image in the Dataset is its sample id. It depends on the order of the concepts and the names of the
files, never on the order of directory listings, so that all ranks and a resumed run agree. An image with several views
(resolutions, augmented variants) becomes several consecutive samples; see image_views.py.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from modules.config.counted import counted
from modules.data.caption_edits import as_trained
from modules.data.caption_tables import read_table
from modules.data.captions import (
    Table,
    captions_beside,
    describe_unreadable,
    edited_captions,
    has_fallback,
    lacks_text,
    own_captions,
)
from modules.data.errors import CaptionError, DataError
from modules.data.folder_walk import NO_OUTPUTS, Outputs, walk
from modules.data.image_formats import EXTENSIONS
from modules.data.images import size_or_reason
from modules.data.mask_names import is_mask
from modules.data.Skipped import Skipped
from modules.data.unread_files import FOLDERS, Unread, kind_of, merged
from modules.data.videos import EXTENSIONS as VIDEO_EXTENSIONS
from modules.data.videos import VideoInfo, info_or_reason, is_video

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.data.clips import Clip
    from modules.data.inpainting import MaskRule
    from modules.data.references import Reference

NUM_READERS = 8


@dataclass(frozen=True, eq=False)
class Views:
    """Describes the samples of a dataset whose images have several views.

    first: int64[N], sample id of the first view of the same image; the other views follow it.
    variant: int32[N], number of the augmented variant, -1 for the original image.
    seed: the seed that augmentations are drawn from.
    """

    first: np.ndarray
    variant: np.ndarray
    seed: int


@dataclass(frozen=True, eq=False)
class Dataset:
    """All readable images of the enabled concepts; row i of each field describes sample i.

    concepts: all configured concepts, including disabled ones, so that concept_index is the N of `concepts.N`.
    paths: the paths of the images, starting with the path of their concept.
    concept_index: int32[N].
    widths, heights: int32[N], in pixels, of the upright image.
    unreadable: (path, reason) of skipped images and subfolders.
    stills: (path, reason) of readable images that are skipped because the model learns from videos only.
    views: None if each image is one sample.
    held_out: bool[N], validation samples, which are never trained on; None if there are none.
    masks: path of each sample's mask, or None for an image without one; None in a run that uses no masks.
    references: the reference images of each sample; None if no concept has a reference folder.
    inpainting: how masks are drawn for models that paint a part of an image; None for others.
    videos: path of each video -> its size and duration; empty unless the run trains on clips.
    clips: the clip of each sample, None for an image; None without clips.
    layers: the paths of each sample's layers; None for a model without layers.
    captionless: (concept index, path) of the images without a caption although their concept reads captions from files
        or a table; also of those that were left out later.
    unread_captions: (concept index, path) of an image -> a caption file beside it that is not read, because the image
        has another one or because of its extension.
    num_masks: number of files skipped because their names mark them as masks.
    run_images: run folder inside a concept's folder -> number of its images, which are skipped.
    unread: the paths of what looks like images but is not read, by kind, and of hidden and system folders.
    """

    concepts: Sequence[ConceptConfig]
    paths: list[str]
    concept_index: np.ndarray
    widths: np.ndarray
    heights: np.ndarray
    unreadable: list[tuple[str, str]]
    views: Views | None = None
    held_out: np.ndarray | None = None
    masks: Sequence[str | None] | None = None
    references: Sequence[tuple[Reference, ...]] | None = None
    inpainting: MaskRule | None = None
    videos: Mapping[str, VideoInfo] = field(default_factory=dict)
    clips: Sequence[Clip | None] | None = None
    layers: Sequence[tuple[str, ...]] | None = None
    captionless: Set[tuple[int, str]] = frozenset()
    unread_captions: Mapping[tuple[int, str], str] = field(default_factory=dict)
    num_masks: int = 0
    run_images: Mapping[str, int] = field(default_factory=dict)
    stills: Sequence[tuple[str, str]] = ()
    unread: Mapping[Unread, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.paths)

    def mask_of(self, sample: int) -> str | None:
        """The path of a sample's mask; None if it is trained without one."""
        return self.masks[sample] if self.masks else None

    def references_of(self, sample: int) -> tuple[Reference, ...]:
        """The reference images of a sample."""
        return self.references[sample] if self.references else ()

    def clip_of(self, sample: int) -> Clip | None:
        """The clip of a sample; None if it is an image."""
        return self.clips[sample] if self.clips else None

    def layers_of(self, sample: int) -> tuple[str, ...]:
        """The paths of a sample's layers, from the bottom to the top."""
        return self.layers[sample] if self.layers else ()

    @property
    def missing_captions(self) -> list[str]:
        """The paths of the `captionless` images that are in the dataset, once for each concept."""
        images = zip(self.concept_index.tolist(), self.paths, strict=True)
        return [path for _, path in dict.fromkeys(image for image in images if image in self.captionless)]

    @property
    def mask_files(self) -> set[str]:
        """The files that are read as masks; not images whose alpha channel is the mask."""
        pairs = zip(self.masks or (), self.paths, strict=False)
        return {mask for mask, path in pairs if mask and mask != path}

    @property
    def other_files(self) -> list[str]:
        """The masks, reference images and layers, each once."""
        references = (one.path for of_sample in self.references or () for one in of_sample)
        layers = (path for of_sample in self.layers or () for path in of_sample)
        return list(dict.fromkeys([*(mask for mask in self.masks or () if mask), *references, *layers]))

    def subset(self, kept: Sequence[int], lost: Sequence[tuple[str, str]], **values: Any) -> Dataset:
        """Only the samples `kept` of a dataset without views; a sample may be repeated.

        lost: path and reason of the images that are left out.

        values: further fields, already for these samples.
        """
        own: dict[str, Any] = {
            "paths": [self.paths[sample] for sample in kept],
            "concept_index": self.concept_index[kept],
            "widths": self.widths[kept],
            "heights": self.heights[kept],
            "masks": self.masks and [self.masks[sample] for sample in kept],
            "references": self.references and [self.references[sample] for sample in kept],
            "layers": self.layers and [self.layers[sample] for sample in kept],
            "unreadable": [*self.unreadable, *lost],
        }
        return replace(self, **{**own, **values})

    @property
    def left_out(self) -> list[tuple[str, str]]:
        """(path, reason) of all skipped images and subfolders, readable or not."""
        return [*self.unreadable, *self.stills]

    @property
    def first_views(self) -> np.ndarray:
        """int64[N], the id of the first view of each sample's image."""
        return np.arange(len(self)) if self.views is None else self.views.first

    @property
    def num_views(self) -> np.ndarray:
        """int64[N], the number of views of an image at its first sample; 0 at its other samples."""
        return np.bincount(self.first_views, minlength=len(self))

    @property
    def num_images(self) -> int:
        return int(np.count_nonzero(self.num_views))

    def images_of(self, samples: Collection[int]) -> list[int]:
        """The sorted ids of the first views of the images that `samples` belong to."""
        first = self.first_views
        return sorted({int(first[sample]) for sample in samples})

    @property
    def repeats(self) -> np.ndarray:
        """float64[N], how often an epoch uses each image, at its first sample; 0 at other and validation samples.

        Regularization concepts together are used as often as all others (prior preservation: Ruiz et al. 2022,
        arXiv 2208.12242, section 3.3, has one prior sample per instance sample). Then `share` settings are applied.
        """
        repeats = np.array([concept.repeats for concept in self.concepts], np.float64)[self.concept_index]
        repeats[self.num_views == 0] = 0
        if self.held_out is not None:
            repeats[self.held_out] = 0
        is_prior = np.array([concept.regularisation for concept in self.concepts], bool)[self.concept_index]
        if repeats[is_prior].any() and repeats[~is_prior].any():
            repeats[is_prior] *= repeats[~is_prior].sum() / repeats[is_prior].sum()
        shares = np.array([concept.share or 0 for concept in self.concepts], np.float64)
        return repeats if not shares.any() else _with_shares(repeats, self.concept_index, shares)


def _with_shares(repeats: np.ndarray, concept_index: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Scales the repeats of concepts with a share (above 0) so that each makes up that fraction of an epoch.

    Concepts without a share keep their repeats and make up the rest. If there are none, the epoch keeps its length and
    the shares are relative to their sum.
    """
    samples = np.bincount(concept_index, repeats, len(shares))
    shares = np.where(samples > 0, shares, 0)
    others = samples[shares == 0].sum()
    total = others / (1 - shares.sum()) if others else samples.sum() / shares.sum()
    factor = np.divide(shares * total, samples, out=np.ones_like(samples), where=shares > 0)
    return repeats * factor[concept_index]


@dataclass(frozen=True)
class _ImageFile:
    """An image file of a concept that was not opened yet. unread_caption: as from `captions_beside`."""

    path: str
    has_caption: bool
    unread_caption: str


def scan(
    concepts: Sequence[ConceptConfig],
    num_readers: int = NUM_READERS,
    is_wanted: Callable[[], bool] = lambda: True,
    outputs: Outputs = NO_OUTPUTS,
    videos: bool = False,
) -> Dataset:
    """Finds the images of all enabled concepts and reads their sizes, in `num_readers` threads.

    is_wanted: called for each folder and image, from any thread; the scan is canceled when it returns False.
    outputs: the output folders of the run, which hold no training data.
    videos: whether to take videos, too; animated GIFs then are videos instead of images.
    Raises DataError if no concept is enabled, if an enabled concept has no folder, readable image or caption table that
    it needs, and if the scan is canceled.
    """

    def read_size(image: _ImageFile, folder_fps: float | None) -> tuple[int, int] | VideoInfo | str:
        _check(is_wanted)
        if videos and is_video(image.path):
            return info_or_reason(image.path, folder_fps)
        return size_or_reason(image.path)

    if not any(concept.enabled for concept in concepts):
        raise DataError("concepts: none is enabled; add a folder of images or enable one.")
    paths: list[str] = []
    concept_index: list[int] = []
    sizes: list[tuple[int, int]] = []
    unreadable: list[tuple[str, str]] = []
    run_images: Counter[str] = Counter()
    video_infos: dict[str, VideoInfo] = {}
    captionless: set[tuple[int, str]] = set()
    unread_captions: dict[tuple[int, str], str] = {}
    unread: list[dict[Unread, list[str]]] = []
    num_masks = 0
    with ThreadPoolExecutor(num_readers) as readers:
        for number, concept in enumerate(concepts):
            if not concept.enabled:
                continue
            found, skipped = _find_images(concept, f"concepts.{number}", is_wanted, outputs, videos)
            unreadable += skipped.folders
            unread += skipped.unread, _unread_beside(concept, outputs)
            num_masks += skipped.num_masks
            run_images |= skipped.run_images  # the maximum, if several concepts use the same folder
            num_before = len(paths)
            sizes_read = readers.map(partial(read_size, folder_fps=concept.frame_folders_fps), found)
            for image, size in zip(found, sizes_read, strict=True):
                if isinstance(size, str):
                    unreadable.append((image.path, size))
                    continue
                paths.append(image.path)
                concept_index.append(number)
                sizes.append(size[:2])
                if isinstance(size, VideoInfo):
                    video_infos[image.path] = size
                if not image.has_caption:
                    captionless.add((number, image.path))
                if image.unread_caption:
                    unread_captions[number, image.path] = image.unread_caption
            if len(paths) == num_before:
                path, reason = unreadable[-1]
                raise DataError(
                    f"concepts.{number}.path {concept.path}: none of its {counted(len(found), 'image')} can be read "
                    f"({os.path.basename(path)}: {reason}); repair them or disable the concept."
                )
    widths, heights = np.array(sizes, np.int32).T.copy()
    index = np.array(concept_index, np.int32)
    return Dataset(
        concepts,
        paths,
        index,
        widths,
        heights,
        unreadable,
        videos=video_infos,
        captionless=captionless,
        unread_captions=unread_captions,
        num_masks=num_masks,
        run_images=dict(sorted(run_images.items())),
        unread=merged(unread),
    )


def caption_prompts(texts: Sequence[tuple[str, ...]], concepts: Sequence[ConceptConfig], count: int) -> tuple[str, ...]:
    """At most `count` different prompts: the first captions, or the names of the concepts if there are none.

    texts: as from `captions`.
    """
    found = dict.fromkeys(as_prompt(options[0], concepts) for options in texts if options[0])
    names = dict.fromkeys(concept.name for concept in concepts if concept.enabled and concept.name)
    return tuple(found or names)[:count]


def as_prompt(caption: str, concepts: Sequence[ConceptConfig]) -> str:
    """A caption without the separators that only steer how its tags vary."""
    for concept in concepts:
        caption = as_trained(caption, concept)
    return caption


def captions(
    dataset: Dataset, unreadable: dict[str, CaptionError] | None = None, empty: set[str] | None = None
) -> list[tuple[str, ...]]:
    """The captions of each image or clip, for each of its samples; ("",) if its caption is missing.

    unreadable: receives image path -> error for captions that can't be read, which then count as missing. Without it,
    they raise a single DataError. empty: receives the paths of images with a caption that is there and empty.
    Raises DataError like `read_table`.
    """
    failed: dict[str, CaptionError] = {}
    tables = read_tables(dataset.concepts)

    def of_image(sample: int) -> tuple[str, ...]:
        number, path, clip = int(dataset.concept_index[sample]), dataset.paths[sample], dataset.clip_of(sample)
        span = clip.span if clip else None
        concept = dataset.concepts[number]
        try:
            own = own_captions(path, concept, tables.get(number))
        except CaptionError as error:
            failed[path] = error
            return ("",)
        if empty is not None and lacks_text(own, concept):
            empty.add(path)
        return edited_captions(own, concept, span) or ("",)

    first = dataset.first_views
    images = np.unique(first).tolist()
    with ThreadPoolExecutor(NUM_READERS) as readers:
        of_first = dict(zip(images, readers.map(of_image, images), strict=True))
    failed = dict(sorted(failed.items()))  # filled by threads, in any order
    if unreadable is not None:
        unreadable.update(failed)
    elif failed:
        raise DataError(describe_unreadable(list(failed.values())))
    return [of_first[sample] for sample in first.tolist()]


def read_tables(concepts: Sequence[ConceptConfig]) -> dict[int, Table]:
    """The caption table of each enabled concept that uses one, by its number. Raises DataError like `read_table`."""
    return {
        number: read_table(concept, f"concepts.{number}")
        for number, concept in enumerate(concepts)
        if concept.enabled and concept.captions == "table"
    }


def _find_images(
    concept: ConceptConfig, setting: str, is_wanted: Callable[[], bool], outputs: Outputs, videos: bool
) -> tuple[list[_ImageFile], Skipped]:
    """The image files of a concept, sorted by relative path, and what was skipped.

    setting: "concepts.N", for error messages.
    """
    if not concept.path:
        raise DataError(f"{setting}.path is empty: choose a folder of images.")
    root = os.path.expanduser(concept.path)
    if not os.path.isdir(root):
        problem = "is not a folder" if os.path.exists(root) else "does not exist"
        raise DataError(f"{setting}.path {concept.path}: {problem}; choose a folder of images.")
    skipped = Skipped()
    found: set[str] = set()
    known: set[str] = set()
    include, exclude = _patterns(concept.include), _patterns(concept.exclude)
    extensions = EXTENSIONS | VIDEO_EXTENSIONS if videos else EXTENSIONS
    apart = _folders_apart(concept, root)
    takes_folders = concept.frame_folders_fps is not None
    for below, names, folders, run, passed in walk(root, concept.include_subfolders, skipped.folders, outputs):
        _check(is_wanted)
        if apart and _with_slash(os.path.join(root, below)).startswith(apart):
            continue
        parts = map(os.path.splitext, names)
        stems = {stem.lower() for stem, extension in parts if extension.lower() in EXTENSIONS | VIDEO_EXTENSIONS}
        stems |= {folder.lower() for folder in folders if takes_folders}
        known.update(below + name for name in names)
        if passed and concept.include_subfolders and not run:
            skipped.unread.setdefault(FOLDERS, []).extend(os.path.join(root, below, name) for name in passed)
        holds_frames = takes_folders and below and videos
        for name in names:
            extension = os.path.splitext(name)[1].lower()
            path = below.rstrip("/") if holds_frames and extension not in VIDEO_EXTENSIONS else below + name
            if not _is_wanted(path, include, exclude):
                continue
            if extension not in extensions:
                if not run and (kind := kind_of(name, videos)):
                    skipped.unread.setdefault(kind, []).append(os.path.join(root, below, name))
                continue
            if run:
                skipped.run_images[run] += 1
            elif is_mask(name, stems):
                skipped.num_masks += not holds_frames  # which is then not used
            else:
                found.add(path)
    if not found:
        raise DataError(f"{setting}.path {concept.path}: {skipped.why_no_images(concept, setting)}")
    table = read_table(concept, setting) if concept.captions == "table" else None
    return [_image_file(root, path, concept, table, known) for path in sorted(found)], skipped


def _image_file(root: str, path: str, concept: ConceptConfig, table: Table | None, known: Set[str]) -> _ImageFile:
    """path: of the image below `root`. known: those of all files there."""
    has_caption, unread = True, ""
    if table is not None:
        has_caption = path in table
    elif concept.captions == "txt":
        has_caption, unread = captions_beside(path, concept, known)
    return _ImageFile(
        os.path.join(root, path), has_caption or has_fallback(concept), unread and os.path.join(root, unread)
    )


def _own_folders(concept: ConceptConfig) -> list[str]:
    """The folders of masks, references and layers, as they are set."""
    return [folder for folder in (concept.mask_folder, concept.reference_folder, concept.layer_folder) if folder]


def _folders_apart(concept: ConceptConfig, root: str) -> tuple[str, ...]:
    """The folders below `root` whose images belong to others: masks, references and layers."""
    start = _with_slash(root)
    folders = map(_with_slash, _own_folders(concept))
    return tuple(folder for folder in folders if folder.startswith(start) and folder != start)


def _unread_beside(concept: ConceptConfig, outputs: Outputs) -> dict[Unread, list[str]]:
    """What looks like masks, references or layers but is not read, as in Dataset."""
    unread: dict[Unread, list[str]] = {}
    for folder in _own_folders(concept):
        root = os.path.expanduser(folder)
        walked = walk(root, concept.include_subfolders, [], outputs) if os.path.isdir(root) else ()
        for below, names, _, run, _ in walked:
            for name in names:
                if not run and (kind := kind_of(name, videos=True)):
                    unread.setdefault(kind, []).append(os.path.join(root, below, name))
    return unread


def _with_slash(folder: str) -> str:
    return os.path.join(os.path.realpath(os.path.expanduser(folder)), "")


def _check(is_wanted: Callable[[], bool]) -> None:
    if not is_wanted():
        raise DataError("the search for images was canceled.")


def _patterns(text: str) -> list[str]:
    return [pattern.strip().lower() for pattern in text.split(",") if pattern.strip()]


def _is_wanted(path: str, include: list[str], exclude: list[str]) -> bool:
    """path: relative to the concept's folder, with forward slashes. include, exclude: lower-case patterns."""
    path = path.lower()  # cameras write IMG_0001.JPG
    if include and not any(fnmatchcase(path, pattern) for pattern in include):
        return False
    return not any(fnmatchcase(path, pattern) for pattern in exclude)
