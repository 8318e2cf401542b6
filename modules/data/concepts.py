"""Finds the images of a run by walking the concepts' folders and reading image sizes, without decoding images.

The position of an image in the Dataset is its sample id. It depends on the order of the concepts and the names of the
files, never on the order of directory listings, so that all ranks and a resumed run agree. An image with several views
(resolutions, augmented variants) becomes several consecutive samples; see image_views.py.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from modules.config.counted import counted
from modules.config.describe import settings_by_path
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
from modules.data.clips import clip_of
from modules.data.crops import SampleCrop, checked_crop, with_crops
from modules.data.Dataset import Dataset
from modules.data.errors import CaptionError, DataError
from modules.data.folder_walk import NO_OUTPUTS, Outputs, walk
from modules.data.image_formats import EXTENSIONS
from modules.data.images import size_or_reason
from modules.data.ImageSettings import Crop, ImageSetting, ImageSettings
from modules.data.mask_names import is_mask
from modules.data.preference_pairs import PROMPT
from modules.data.Skipped import Skipped
from modules.data.unread_files import FOLDERS, Unread, merged, unread_kind
from modules.data.videos import EXTENSIONS as VIDEO_EXTENSIONS
from modules.data.videos import VideoInfo, info_or_reason, is_video

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig

NUM_READERS = 8
NUM_SHOWN = 1000  # images of an error that the window can lead to


@dataclass(frozen=True)
class ImageFile:
    """An image file of a concept that was not opened yet.

    unread_caption: as from `captions_beside`. crop, left_out: of its settings.
    """

    path: str
    has_caption: bool
    unread_caption: str
    crop: Crop | None
    left_out: bool = False


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
    it needs, if the settings of its images can't be used, and if the scan is canceled.
    """

    def read_size(image: ImageFile, folder_fps: float | None) -> tuple[int, int] | VideoInfo | str:
        _check(is_wanted)
        if videos and is_video(image.path):
            return info_or_reason(image.path, folder_fps)
        return size_or_reason(image.path)

    if not any(concept.enabled for concept in concepts):
        raise DataError.at("concepts", ": none is enabled; add a folder of images or enable one.")
    paths: list[str] = []
    concept_index: list[int] = []
    sizes: list[tuple[int, int]] = []
    crops: list[SampleCrop | None] = []
    set_aside: list[str] = []
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
            found, skipped = find_images(concept, f"concepts.{number}", is_wanted, outputs, videos)
            unreadable += skipped.folders
            unread += skipped.unread, _unread_beside(concept, outputs)
            num_masks += skipped.num_masks
            run_images |= skipped.run_images  # the maximum, if several concepts use the same folder
            set_aside += skipped.set_aside
            num_before = len(paths)
            sizes_read = readers.map(partial(read_size, folder_fps=concept.frame_folders_fps), found)
            for image, size in zip(found, sizes_read, strict=True):
                if isinstance(size, str):
                    unreadable.append((image.path, size))
                    continue
                paths.append(image.path)
                concept_index.append(number)
                crops.append(checked_crop(image.crop, image.path, size[:2], f"concepts.{number}.path"))
                sizes.append(size[:2] if image.crop is None else (image.crop.width, image.crop.height))
                if isinstance(size, VideoInfo):
                    video_infos[image.path] = size
                if not image.has_caption:
                    captionless.add((number, image.path))
                if image.unread_caption:
                    unread_captions[number, image.path] = image.unread_caption
            if len(paths) == num_before:
                path, reason = unreadable[-1]
                raise DataError.at(
                    f"concepts.{number}.path",
                    f"{concept.path}: none of its {counted(len(found), 'image')} can be read "
                    f"({os.path.basename(path)}: {reason}); repair them or disable the concept.",
                )
    widths, heights = np.array(sizes, np.int32).T.copy()
    index = np.array(concept_index, np.int32)
    dataset = Dataset(
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
        set_aside=list(dict.fromkeys(set_aside)),
    )
    return with_crops(dataset, crops)


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


def _is_unicode(path: str) -> bool:
    """Whether JSON can carry the path, unlike one with bytes that are not UTF-8."""
    return path.encode("utf-8", "ignore").decode() == path


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
        number, path, clip = int(dataset.concept_index[sample]), dataset.paths[sample], clip_of(dataset, sample)
        span = clip.span if clip else None
        concept = dataset.concepts[number]
        try:
            listed = dataset.value(PROMPT, sample)
            own = own_captions(path, concept, tables.get(number)) if listed is None else (listed,)
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
        raise DataError(describe_unreadable(list(failed.values())), images=[*filter(_is_unicode, failed)][:NUM_SHOWN])
    return [of_first[sample] for sample in first.tolist()]


def read_tables(concepts: Sequence[ConceptConfig]) -> dict[int, Table]:
    """The caption table of each enabled concept that uses one, by its number. Raises DataError like `read_table`."""
    return {
        number: read_table(concept, f"concepts.{number}")
        for number, concept in enumerate(concepts)
        if concept.enabled and concept.captions == "table"
    }


def find_images(
    concept: ConceptConfig,
    setting: str,
    is_wanted: Callable[[], bool],
    outputs: Outputs,
    videos: bool,
    with_left_out: bool = False,
) -> tuple[list[ImageFile], Skipped]:
    """The image files of a concept, sorted by relative path, and what was skipped. No file is opened.

    setting: "concepts.N", for error messages. is_wanted, outputs, videos: as for `scan`. with_left_out: whether to give
    the images, too, that their settings leave out.
    Raises DataError if there is no folder, no image or no caption table that it needs.
    """
    if not concept.path:
        raise DataError.at(f"{setting}.path", "is empty: choose a folder of images.")
    root = os.path.expanduser(concept.path)
    if not os.path.isdir(root):
        problem = "is not a folder" if os.path.exists(root) else "does not exist"
        raise DataError.at(f"{setting}.path", f"{concept.path}: {problem}; choose a folder of images.")
    skipped = Skipped()
    found: set[str] = set()
    known: set[str] = set()
    include, exclude = _patterns(concept.include), _patterns(concept.exclude)
    either = EXTENSIONS | VIDEO_EXTENSIONS
    extensions = either if videos else EXTENSIONS
    apart = _folders_apart(concept, root)
    takes_folders = concept.frame_folders_fps is not None
    for below, names, folders, run, passed in walk(root, concept.include_subfolders, skipped.folders, outputs):
        _check(is_wanted)
        if apart and _with_slash(os.path.join(root, below)).startswith(apart):
            continue
        parts = map(os.path.splitext, names)
        stems = {stem.lower() for stem, extension in parts if extension.lower() in either}
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
                if not run and (kind := unread_kind(name, videos)):
                    skipped.unread.setdefault(kind, []).append(os.path.join(root, below, name))
                continue
            if run:
                skipped.run_images[run] += 1
            elif is_mask(name, stems):
                skipped.num_masks += not holds_frames  # which is then not used
            else:
                found.add(path)
    settings = ImageSettings.read(root, f"{setting}.path")
    set_aside = {path for path in found if settings.of(path).left_out}
    skipped.set_aside += sorted(os.path.join(root, path) for path in set_aside)
    kept = found if with_left_out else found - set_aside
    if not kept:
        raise DataError.at(f"{setting}.path", f"{concept.path}: {skipped.why_no_images(concept, setting)}")
    table = read_table(concept, setting) if concept.captions == "table" else None
    return [_image_file(root, path, concept, table, known, settings.of(path)) for path in sorted(kept)], skipped


def _image_file(
    root: str, path: str, concept: ConceptConfig, table: Table | None, known: Set[str], setting: ImageSetting
) -> ImageFile:
    """path: of the image below `root`. known: those of all files there."""
    has_caption, unread = True, ""
    if table is not None:
        has_caption = path in table
    elif concept.captions == "txt":
        has_caption, unread = captions_beside(path, concept, known)
    has_caption = has_caption or has_fallback(concept)
    unread = unread and os.path.join(root, unread)
    return ImageFile(os.path.join(root, path), has_caption, unread, setting.crop, setting.left_out)


def _own_folders(concept: ConceptConfig) -> list[str]:
    """The folders of what belongs to images, such as masks, as they are set."""
    infos = [info for info in settings_by_path().values() if info.path.startswith("concepts[].")]
    names = [info.path.removeprefix("concepts[].") for info in infos if info.format == "folder"]
    return [folder for name in names if name != "path" and (folder := getattr(concept, name))]


def _folders_apart(concept: ConceptConfig, root: str) -> tuple[str, ...]:
    """The folders below `root` whose images belong to others, such as masks."""
    start = _with_slash(root)
    folders = map(_with_slash, _own_folders(concept))
    return tuple(folder for folder in folders if folder.startswith(start) and folder != start)


def _unread_beside(concept: ConceptConfig, outputs: Outputs) -> dict[Unread, list[str]]:
    """What looks like an image in a folder of what belongs to images, but is not read, as in Dataset."""
    unread: dict[Unread, list[str]] = {}
    for folder in _own_folders(concept):
        root = os.path.expanduser(folder)
        walked = walk(root, concept.include_subfolders, [], outputs) if os.path.isdir(root) else ()
        for below, names, _, run, _ in walked:
            for name in names:
                if not run and (kind := unread_kind(name, videos=True)):
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
