"""Which pictures a run has: the concepts' folders walked, the sizes read, and nothing decoded.

The position of a picture in the Dataset is its sample id. It depends on the order of the concepts and the names of the
files, never on the order in which the disk lists them, so that all ranks and a resumed run agree.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from modules.data.captions import caption_path, read_caption
from modules.data.errors import DataError, PictureError
from modules.data.pictures import EXTENSIONS, read_size

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig

NUM_READERS = 8


@dataclass(frozen=True, eq=False)
class Dataset:
    """All readable pictures of the enabled concepts; row i of each field is sample i.

    concepts: as configured, disabled ones too, so that concept_index is the number in `concepts.N`.
    paths: the concept's path with the picture's below it.
    concept_index: int32[N].
    widths, heights: int32[N], pixels of the upright picture.
    unreadable: (path, reason) of pictures and subfolders left out.
    missing_captions: pictures whose concept takes captions from text files and that have none.
    """

    concepts: Sequence[ConceptConfig]
    paths: list[str]
    concept_index: np.ndarray
    widths: np.ndarray
    heights: np.ndarray
    unreadable: list[tuple[str, str]]
    missing_captions: int

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def repeats(self) -> np.ndarray:
        """float64[N], how often an epoch shows each sample.

        Regularisation concepts together are shown as often as all others (prior preservation: Ruiz et al. 2022,
        arXiv 2208.12242, section 3.3, takes one prior sample per instance sample).
        """
        repeats = np.array([concept.repeats for concept in self.concepts], np.float64)[self.concept_index]
        is_prior = np.array([concept.regularisation for concept in self.concepts], bool)[self.concept_index]
        if is_prior.any() and not is_prior.all():
            repeats[is_prior] *= repeats[~is_prior].sum() / repeats[is_prior].sum()
        return repeats


@dataclass(frozen=True)
class _Found:
    """A picture file of a concept, not yet opened."""

    path: str
    has_text: bool


def scan(concepts: Sequence[ConceptConfig]) -> Dataset:
    """Find the pictures of all enabled concepts and read their sizes.

    Raises DataError if no concept is enabled, or an enabled one has no folder or no readable picture.
    """
    if not any(concept.enabled for concept in concepts):
        raise DataError("concepts: none is enabled; add a folder of pictures or enable one.")
    paths: list[str] = []
    concept_index: list[int] = []
    sizes: list[tuple[int, int]] = []
    unreadable: list[tuple[str, str]] = []
    missing_captions = 0
    with ThreadPoolExecutor(NUM_READERS) as readers:
        for number, concept in enumerate(concepts):
            if not concept.enabled:
                continue
            found, skipped_folders = _find_pictures(concept, f"concepts.{number}")
            unreadable += skipped_folders
            num_before = len(paths)
            for picture, size in zip(found, readers.map(_size_or_reason, [p.path for p in found]), strict=True):
                if isinstance(size, str):
                    unreadable.append((picture.path, size))
                    continue
                paths.append(picture.path)
                concept_index.append(number)
                sizes.append(size)
                missing_captions += concept.captions == "txt" and not picture.has_text
            if len(paths) == num_before:
                path, reason = unreadable[-1]
                raise DataError(
                    f"concepts.{number}.path {concept.path}: none of its {len(found)} pictures can be read "
                    f"({os.path.basename(path)}: {reason}); repair them or disable the concept."
                )
    widths, heights = np.array(sizes, np.int32).T.copy()
    index = np.array(concept_index, np.int32)
    return Dataset(concepts, paths, index, widths, heights, unreadable, missing_captions)


def captions(dataset: Dataset) -> list[str]:
    """The caption of each sample, "" where its text file is missing. Raises DataError as `read_caption`."""
    of_sample = [dataset.concepts[number] for number in dataset.concept_index]
    with ThreadPoolExecutor(NUM_READERS) as readers:
        return [caption or "" for caption in readers.map(read_caption, dataset.paths, of_sample)]


def _size_or_reason(path: str) -> tuple[int, int] | str:
    try:
        return read_size(path)
    except PictureError as error:
        return error.reason


def _find_pictures(concept: ConceptConfig, setting: str) -> tuple[list[_Found], list[tuple[str, str]]]:
    """The picture files of a concept by relative path, and (path, reason) of subfolders that can't be listed.

    setting: "concepts.N", for the messages.
    """
    if not concept.path:
        raise DataError(f"{setting}.path is empty: choose a folder of pictures.")
    root = os.path.expanduser(concept.path)
    if not os.path.isdir(root):
        problem = "is not a folder" if os.path.exists(root) else "does not exist"
        raise DataError(f"{setting}.path {concept.path}: {problem}; choose a folder of pictures.")
    skipped: list[tuple[str, str]] = []
    relative: dict[str, bool] = {}
    for below, names in _walk(root, concept.include_subfolders, skipped):
        for name in names:
            if os.path.splitext(name)[1].lower() in EXTENSIONS:
                relative[below + name] = caption_path(name) in names
    if not relative:
        if skipped:
            path, reason = skipped[0]
            raise DataError(f"{setting}.path {concept.path}: {path} can't be listed ({reason}); allow reading it.")
        subfolders = "" if concept.include_subfolders else f", switch {setting}.include_subfolders on"
        raise DataError(
            f"{setting}.path {concept.path}: holds no pictures ({' '.join(sorted(EXTENSIONS))}); "
            f"add some{subfolders} or disable the concept."
        )
    return [_Found(os.path.join(root, path), relative[path]) for path in sorted(relative)], skipped


def _walk(root: str, subfolders: bool, skipped: list[tuple[str, str]]) -> Iterator[tuple[str, set[str]]]:
    """(folder below root as "a/b/", names of its files) for root and, with `subfolders`, all below; hidden ones not.

    Links are followed, and each real folder is listed once, so a link to a parent ends there.
    Folders that can't be listed are added to `skipped`.
    """
    seen: set[tuple[int, int]] = set()
    todo = [""]
    while todo:
        below = todo.pop()
        folder = os.path.join(root, below)
        try:
            status = os.stat(folder)  # not DirEntry.stat(): it has no inode on Windows
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            files, folders = _list_folder(folder)
        except OSError as error:
            skipped.append((folder.rstrip("/"), error.strerror))
            continue
        yield below, files
        if subfolders:
            # popped from the end: in order of name, so that of two links to one folder the first is always taken
            todo += [f"{below}{name}/" for name in sorted(folders, reverse=True)]


def _list_folder(folder: str) -> tuple[set[str], list[str]]:
    """Names of the visible files and folders in `folder`; what a broken or circular link leads to is neither."""
    files, folders = set(), []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            try:
                if entry.is_dir():
                    folders.append(entry.name)
                elif entry.is_file():
                    files.add(entry.name)
            except OSError:  # a link that leads to itself
                continue
    return files, folders
