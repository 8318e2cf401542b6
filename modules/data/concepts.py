"""Which pictures a run has: the concepts' folders walked, the sizes read, and nothing decoded.

The position of a picture in the Dataset is its sample id. It depends on the order of the concepts and the names of the
files, never on the order in which the disk lists them, so that all ranks and a resumed run agree. A picture with
several looks (resolutions, augmented variants) is several samples that follow each other: image_views.py makes them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np

from modules.data.caption_tables import read_table
from modules.data.captions import Table, caption_path, describe_unreadable, read_captions
from modules.data.errors import CaptionError, DataError
from modules.data.folder_walk import NO_OUTPUTS, Outputs, walk
from modules.data.images import EXTENSIONS, size_or_reason
from modules.data.masks import is_mask

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig

NUM_READERS = 8


@dataclass(frozen=True, eq=False)
class Views:
    """What the samples show, where pictures have several looks.

    first: int64[N], sample id of the first view of the same picture; the others follow it.
    variant: int32[N], number of the augmented variant, -1 for the picture as it is.
    seed: from which variants are drawn.
    """

    first: np.ndarray
    variant: np.ndarray
    seed: int


@dataclass(frozen=True, eq=False)
class Dataset:
    """All readable pictures of the enabled concepts; row i of each field is sample i.

    concepts: as configured, disabled ones too, so that concept_index is the number in `concepts.N`.
    paths: the concept's path with the picture's below it.
    concept_index: int32[N].
    widths, heights: int32[N], pixels of the upright picture.
    unreadable: (path, reason) of pictures and subfolders left out.
    missing_captions: pictures whose concept takes captions from text files or a table and that have none.
    views: None where each picture is one sample.
    held_out: bool[N], samples for validation, which are never trained on; None for none.
    masks: path of each sample's mask, None where it has none; None without masked training.
    num_masks: files that are no pictures but, by their names, masks of others.
    run_images: run folders in the concepts' folders -> how many images there are left out, for a run has written them.
    """

    concepts: Sequence[ConceptConfig]
    paths: list[str]
    concept_index: np.ndarray
    widths: np.ndarray
    heights: np.ndarray
    unreadable: list[tuple[str, str]]
    missing_captions: int
    views: Views | None = None
    held_out: np.ndarray | None = None
    masks: Sequence[str | None] | None = None
    num_masks: int = 0
    run_images: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def first_views(self) -> np.ndarray:
        """int64[N], for each sample the first of the same picture."""
        return np.arange(len(self)) if self.views is None else self.views.first

    @property
    def num_views(self) -> np.ndarray:
        """int64[N], how many looks a picture has, at its first sample; 0 at the others."""
        return np.bincount(self.first_views, minlength=len(self))

    @property
    def num_images(self) -> int:
        return int(np.count_nonzero(self.num_views))

    def images_of(self, samples: Collection[int]) -> list[int]:
        """The first samples of the pictures that `samples` show, each once, in order."""
        first = self.first_views
        return sorted({int(first[sample]) for sample in samples})

    @property
    def repeats(self) -> np.ndarray:
        """float64[N], how often an epoch shows each picture, at its first sample; 0 at its others and for validation.

        Regularisation concepts together are shown as often as all others (prior preservation: Ruiz et al. 2022,
        arXiv 2208.12242, section 3.3, takes one prior sample per instance sample). Concepts with a share then get it.
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
    """`repeats` with those of concepts that have a share (above 0) changed until each fills its share of an epoch.

    The other concepts stay as they are and fill the rest; without any, the epoch stays as long as the repeats made it
    and the shares are taken in proportion.
    """
    samples = np.bincount(concept_index, repeats, len(shares))
    shares = np.where(samples > 0, shares, 0)
    others = samples[shares == 0].sum()
    total = others / (1 - shares.sum()) if others else samples.sum() / shares.sum()
    factor = np.divide(shares * total, samples, out=np.ones_like(samples), where=shares > 0)
    return repeats * factor[concept_index]


@dataclass(frozen=True)
class _ImageFile:
    """A picture file of a concept, not yet opened."""

    path: str
    has_caption: bool


@dataclass
class _Skipped:
    """What is in a concept's folder and not among its pictures.

    folders: (path, reason) of subfolders that can't be listed. num_masks: files that are masks. run_images: as in
    Dataset.
    """

    folders: list[tuple[str, str]] = field(default_factory=list)
    num_masks: int = 0
    run_images: Counter[str] = field(default_factory=Counter)


def scan(
    concepts: Sequence[ConceptConfig],
    num_readers: int = NUM_READERS,
    is_wanted: Callable[[], bool] = lambda: True,
    outputs: Outputs = NO_OUTPUTS,
) -> Dataset:
    """Find the pictures of all enabled concepts and read their sizes, in `num_readers` threads.

    outputs: of the run that the scan is for.
    is_wanted: asked for each folder and picture, from any thread; the scan ends once it says no.
    Raises DataError if no concept is enabled, or an enabled one has no folder, no readable picture or no table of
    captions where it should have one, and where the scan is no longer wanted.
    """

    def read_size(picture: _ImageFile) -> tuple[int, int] | str:
        _check(is_wanted)
        return size_or_reason(picture.path)

    if not any(concept.enabled for concept in concepts):
        raise DataError("concepts: none is enabled; add a folder of pictures or enable one.")
    paths: list[str] = []
    concept_index: list[int] = []
    sizes: list[tuple[int, int]] = []
    unreadable: list[tuple[str, str]] = []
    run_images: Counter[str] = Counter()
    missing_captions = num_masks = 0
    with ThreadPoolExecutor(num_readers) as readers:
        for number, concept in enumerate(concepts):
            if not concept.enabled:
                continue
            found, skipped = _find_images(concept, f"concepts.{number}", is_wanted, outputs)
            unreadable += skipped.folders
            num_masks += skipped.num_masks
            run_images |= skipped.run_images  # the larger number, where several concepts share a folder
            num_before = len(paths)
            for picture, size in zip(found, readers.map(read_size, found), strict=True):
                if isinstance(size, str):
                    unreadable.append((picture.path, size))
                    continue
                paths.append(picture.path)
                concept_index.append(number)
                sizes.append(size)
                missing_captions += not picture.has_caption
            if len(paths) == num_before:
                path, reason = unreadable[-1]
                raise DataError(
                    f"concepts.{number}.path {concept.path}: none of its {len(found)} pictures can be read "
                    f"({os.path.basename(path)}: {reason}); repair them or disable the concept."
                )
    widths, heights = np.array(sizes, np.int32).T.copy()
    index = np.array(concept_index, np.int32)
    others = {"num_masks": num_masks, "run_images": dict(sorted(run_images.items()))}
    return Dataset(concepts, paths, index, widths, heights, unreadable, missing_captions, **others)


def captions(dataset: Dataset, unreadable: dict[str, CaptionError] | None = None) -> list[tuple[str, ...]]:
    """The captions of each sample, ("",) where there should be one and is none.

    unreadable: takes picture -> error of captions that can't be read, which then have the value of missing ones.
    Raises DataError as `read_table`, and without `unreadable` also one that names all captions that can't be read.
    """
    failed: dict[str, CaptionError] = {}
    tables: dict[int, Table] = {
        number: read_table(concept, f"concepts.{number}")
        for number, concept in enumerate(dataset.concepts)
        if concept.enabled and concept.captions == "table"
    }

    def of_picture(sample: int) -> tuple[str, ...]:
        number, path = int(dataset.concept_index[sample]), dataset.paths[sample]
        try:
            return read_captions(path, dataset.concepts[number], tables.get(number)) or ("",)
        except CaptionError as error:
            failed[path] = error
            return ("",)

    first = dataset.first_views
    pictures = np.unique(first).tolist()
    with ThreadPoolExecutor(NUM_READERS) as readers:
        of_first = dict(zip(pictures, readers.map(of_picture, pictures), strict=True))
    failed = dict(sorted(failed.items()))  # threads have filled it
    if unreadable is not None:
        unreadable.update(failed)
    elif failed:
        raise DataError(describe_unreadable(list(failed.values())))
    return [of_first[sample] for sample in first.tolist()]


def _find_images(
    concept: ConceptConfig, setting: str, is_wanted: Callable[[], bool], outputs: Outputs
) -> tuple[list[_ImageFile], _Skipped]:
    """The picture files of a concept by relative path, and what else is in its folder.

    setting: "concepts.N", for the messages.
    """
    if not concept.path:
        raise DataError(f"{setting}.path is empty: choose a folder of pictures.")
    root = os.path.expanduser(concept.path)
    if not os.path.isdir(root):
        problem = "is not a folder" if os.path.exists(root) else "does not exist"
        raise DataError(f"{setting}.path {concept.path}: {problem}; choose a folder of pictures.")
    skipped = _Skipped()
    relative: dict[str, bool] = {}
    include, exclude = _patterns(concept.include), _patterns(concept.exclude)
    for below, names, run in walk(root, concept.include_subfolders, skipped.folders, outputs):
        _check(is_wanted)
        in_lower_case = {name.lower() for name in names}
        for name in names:
            if os.path.splitext(name)[1].lower() not in EXTENSIONS or not _is_wanted(below + name, include, exclude):
                continue
            if run:
                skipped.run_images[run] += 1
            elif is_mask(name, in_lower_case):
                skipped.num_masks += 1
            else:
                relative[below + name] = concept.captions != "txt" or caption_path(name) in names
    if not relative:
        raise DataError(f"{setting}.path {concept.path}: {_why_no_images(concept, setting, skipped)}")
    if concept.captions == "table":
        table = read_table(concept, setting)
        relative = {path: path in table for path in relative}
    return [_ImageFile(os.path.join(root, path), relative[path]) for path in sorted(relative)], skipped


def _why_no_images(concept: ConceptConfig, setting: str, skipped: _Skipped) -> str:
    """Why there is no picture in a folder that is there, and what to do."""
    if skipped.folders:
        path, reason = skipped.folders[0]
        return f"{path} can't be listed ({reason}); allow reading it."
    if skipped.run_images:
        run, count = next(iter(skipped.run_images.items()))
        return (
            f"holds nothing but {count} images of the run folder {run}, which are left out; add images, or choose the "
            "folder of its samples to train on these."
        )
    if concept.include or concept.exclude:
        return (
            f"none of its pictures is taken by {setting}.include {concept.include!r} and exclude {concept.exclude!r}; "
            "change the patterns."
        )
    subfolders = "" if concept.include_subfolders else f", switch {setting}.include_subfolders on"
    extensions = " ".join(sorted(EXTENSIONS))
    return f"holds no pictures ({extensions}); add some{subfolders} or disable the concept."


def _check(is_wanted: Callable[[], bool]) -> None:
    if not is_wanted():
        raise DataError("the search for pictures was given up.")


def _patterns(text: str) -> list[str]:
    return [pattern.strip().lower() for pattern in text.split(",") if pattern.strip()]


def _is_wanted(path: str, include: list[str], exclude: list[str]) -> bool:
    """path: below the concept's folder, with /. The patterns are in lower case."""
    path = path.lower()  # cameras write IMG_0001.JPG
    if include and not any(fnmatchcase(path, pattern) for pattern in include):
        return False
    return not any(fnmatchcase(path, pattern) for pattern in exclude)
