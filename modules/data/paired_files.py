"""Finds files that belong to an image by their names, in a folder of their own.

Those of `people/ann.jpg` are the images `people/ann.*` in that folder, or `people/ann_0.*`, `people/ann_1.*` and so on,
in this order; if videos are asked for, also videos and folders of frames of these names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Set
from typing import TYPE_CHECKING

from modules.config.counted import counted
from modules.data.captions import file_stem
from modules.data.errors import DataError
from modules.data.image_formats import EXTENSIONS
from modules.data.videos import EXTENSIONS as VIDEO_EXTENSIONS

if TYPE_CHECKING:
    from modules.data.Dataset import Dataset


def find_paired(dataset: Dataset, setting: str, one: str, several: str, videos: bool = False) -> list[tuple[str, ...]]:
    """The paths of each sample's files in the folder of its concept that `setting` names; () without a folder.

    one, several: what messages call one of the files, and all of them. videos: whether they can be videos.
    Raises DataError if a folder does not exist or holds files of none of the images.
    """
    in_folder: dict[tuple[int, str], dict[str, list[str]]] = {}
    stems: dict[tuple[int, str], set[str]] = {}
    places = []
    for path, number in zip(dataset.paths, dataset.concept_index.tolist(), strict=True):
        below = os.path.relpath(path, os.path.expanduser(dataset.concepts[number].path))
        folder, name = os.path.split(below)
        stem = file_stem(name)
        places.append((number, folder, stem))
        stems.setdefault((number, folder), set()).add(stem.lower())
    for number, folder in stems:
        if root := getattr(dataset.concepts[number], setting):
            place = os.path.join(_root(root, number, setting, several), folder)
            folders = videos and dataset.concepts[number].frame_folders_fps is not None
            extensions = EXTENSIONS | VIDEO_EXTENSIONS if videos else EXTENSIONS
            in_folder[number, folder] = _by_stem(place, stems[number, folder], extensions, folders)
    found = [tuple(in_folder.get((n, folder), {}).get(stem.lower(), ())) for n, folder, stem in places]
    for number, concept in enumerate(dataset.concepts):
        of_concept = [found[i] for i, place in enumerate(places) if place[0] == number]
        root = getattr(concept, setting)
        if of_concept and root and not any(of_concept):
            raise DataError.at(
                f"concepts.{number}.{setting}",
                f"{root}: it holds a {one} of none of the "
                f"{counted(len(of_concept), 'image')}; name {one}s like the images, or with _0, _1 behind the name.",
            )
    return found


def _root(folder: str, number: int, setting: str, several: str) -> str:
    root = os.path.expanduser(folder)
    if not os.path.isdir(root):
        problem = "is not a folder" if os.path.exists(root) else "does not exist"
        raise DataError.at(
            f"concepts.{number}.{setting}", f"{folder}: {problem}; choose a folder of {several}, or empty it."
        )
    return root


def _by_stem(place: str, stems: set[str], extensions: Set[str], folders: bool) -> dict[str, list[str]]:
    """Stem of an image, in lower case -> the paths of its files in the folder `place`, in order.

    A file with the name of an image belongs to that image, even if it looks like a numbered file of another, too.
    folders: whether folders are among the files.
    """
    try:
        names = os.listdir(place)
    except FileNotFoundError:
        return {}
    except OSError as error:
        message = f"The folder {place} can't be listed ({error.strerror}): change its permissions."
        raise DataError(message) from error
    found: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        stem, extension = os.path.splitext(name)
        if extension.lower() not in extensions:
            if not folders or not os.path.isdir(os.path.join(place, name)):
                continue
            stem = name
        stem = stem.lower()
        numbered = re.fullmatch(r"(.+)_(\d+)", stem)
        if stem in stems:
            found.setdefault(stem, []).append((-1, name))
        elif numbered and numbered[1] in stems:
            found.setdefault(numbered[1], []).append((int(numbered[2]), name))
    return {stem: [os.path.join(place, name) for _, name in sorted(files)] for stem, files in found.items()}
