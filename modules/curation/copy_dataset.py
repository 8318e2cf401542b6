"""Writes a cleaned copy of a dataset: without the images that are left out, and with its crops cut for good.

What trains of the copy is what trains of the original with its settings, bit for bit, also in other programs. The
original is only read.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from modules.data.caption_tables import read_table
from modules.data.captions import caption_paths, path_in_concept
from modules.data.concepts import scan
from modules.data.conditions import condition_class, folder_settings
from modules.data.conditions.references import is_alike
from modules.data.crops import SampleCrop, crop_of_sample
from modules.data.errors import DataError, ImageError
from modules.data.images import load_gray_on_black, load_image, load_rgba, may_be_transparent
from modules.data.ImageSettings import ImageSetting, ImageSettings, settings_file
from modules.data.masks import find_masks, is_mask_clip
from modules.data.paired_files import find_paired
from modules.data.videos import is_video
from modules.session.atomic import new_folder

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.data.Dataset import Dataset

NUM_WRITERS = 4
TABLE = "metadata.jsonl"


@dataclass(frozen=True)
class DatasetCopy:
    """What was written. concept: the settings with which the copy trains like the original.

    num_images: of the copy, with videos. num_cropped: of these, those that were cut. num_dropped: of the original,
    those that are left out by its settings or were to be dropped. unreadable: (path, reason) of those that can't be
    read.
    """

    concept: ConceptConfig
    num_images: int
    num_cropped: int
    num_dropped: int
    unreadable: list[tuple[str, str]]


@dataclass(frozen=True)
class _Item:
    """An image or video and what belongs to it. name: its path in the copy, with forward slashes.

    crop: what to cut; None for a video, too. captions: paths, of which the first that exists counts. paired: setting
    -> its files, which get a folder of their own in the copy.
    """

    path: str
    name: str
    crop: SampleCrop | None
    captions: Sequence[str]
    mask: str | None
    paired: dict[str, tuple[str, ...]]

    @property
    def stem(self) -> str:
        """Its name without an extension; that of a folder of frames stays."""
        return self.name if os.path.isdir(self.path) else os.path.splitext(self.name)[0]


def copy_dataset(
    concept: ConceptConfig,
    target: str,
    dropped: Collection[str] = (),
    on_done: Callable[[int, int], None] = lambda done, total: None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> DatasetCopy:
    """Writes the images and videos of a concept, with captions, masks, references and layers, to a new folder.

    target: must not exist, and appears once it is complete. dropped: paths of images that are left out, too.
    on_done: called with the images that are done, and all. is_wanted: asked now and then; nothing is written once it
    says no. Raises DataError, also for what training would refuse.
    """
    folder = check_new_folder(concept, target)
    concept = replace(concept, enabled=True)
    dataset = scan([concept], videos=True)
    items = _items(concept, dataset, dropped)
    if not items:
        raise DataError(f"All images of {concept.path} are left out or dropped: there is nothing to copy.")
    # references and layers must not lie among the images, where they would be trained as such
    inner = "images" if any(item.paired for item in items) or _mask_folder(items) else ""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(folder) as making:
            unreadable = _write(items, making, inner, on_done, is_wanted)
            lost = {path for path, _ in unreadable}
            kept = [item for item in items if item.path not in lost]
            _write_settings(concept, dataset, kept, making / inner)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{target} can't be written ({reason}): free some space, or choose another folder.") from error
    return DatasetCopy(
        _concept_of(concept, folder, inner, kept),
        len(kept),
        sum(item.crop is not None for item in kept),
        len(dataset.set_aside) + len(dataset) - len(items),
        [*dataset.unreadable, *unreadable],
    )


def check_new_folder(concept: ConceptConfig, target: str) -> Path:
    """The absolute path of a folder that is to be made of a concept's files.

    Raises DataError if it is there already, or inside of the concept's folders.
    """
    folder = Path(os.path.abspath(os.path.expanduser(target)))
    if os.path.lexists(folder):
        raise DataError(f"{folder} is there already: name a new folder.")
    named = (concept.path, concept.mask_folder, *(getattr(concept, setting) for setting in folder_settings()))
    for root in (os.path.realpath(os.path.expanduser(path)) for path in named if path):
        if os.path.realpath(folder).startswith(os.path.join(root, "")):
            raise DataError(f"{folder} is inside of {root}, where training would find it, too: name another.")
    return folder


def _items(concept: ConceptConfig, dataset: Dataset, dropped: Collection[str]) -> list[_Item]:
    masks = find_masks(dataset, clips=True)
    paired = {
        setting: find_paired(dataset, setting, folder[:-1], folder, condition_class(folder).takes_videos)
        for setting, folder in folder_settings().items()
        if getattr(concept, setting)
    }
    samples = [sample for sample, path in enumerate(dataset.paths) if path not in dropped]
    cut = {sample: None if is_video(dataset.paths[sample]) else crop_of_sample(dataset, sample) for sample in samples}
    items: dict[int, _Item] = {}
    taken: set[str] = set()
    for sample in sorted(samples, key=lambda sample: cut[sample] is not None):  # whole ones keep their names
        path = dataset.paths[sample]
        name = path_in_concept(path, concept)
        if cut[sample]:
            name = _free_name(os.path.splitext(name)[0], taken)
        taken.add(os.path.splitext(name)[0].lower())
        captions = caption_paths(path, concept) if concept.captions == "txt" else ()
        mask = masks[sample]
        beside = {setting: found[sample] for setting, found in paired.items()}
        items[sample] = _Item(path, name, cut[sample], captions, mask, beside)
    return [items[sample] for sample in samples]


def _free_name(stem: str, taken: Collection[str]) -> str:
    """Of a cropped image: captions and masks of another image with the same name would be cropped like it.

    taken: names without extension, in lower case.
    """
    names = itertools.chain([stem, f"{stem}-cropped"], (f"{stem}-cropped-{number}" for number in itertools.count(2)))
    return next(f"{name}.png" for name in names if name.lower() not in taken)


def _write(
    items: Sequence[_Item],
    folder: Path,
    inner: str,
    on_done: Callable[[int, int], None],
    is_wanted: Callable[[], bool],
) -> list[tuple[str, str]]:
    """Returns path and reason of the images that can't be read, of which nothing is written."""

    def write(item: _Item) -> str:
        if not is_wanted():
            raise DataError("the copy was canceled.")
        try:
            _write_item(item, folder, inner, masks)
        except ImageError as error:
            return error.reason
        return ""

    masks = _mask_folder(items)
    unreadable = []
    with ThreadPoolExecutor(NUM_WRITERS) as writers:
        for done, (item, reason) in enumerate(zip(items, writers.map(write, items), strict=True), start=1):
            if reason:
                unreadable.append((item.path, reason))
            on_done(done, len(items))
    return unreadable


def _mask_folder(items: Sequence[_Item]) -> str:
    """That of the copy, which masks that are clips need; "" for masks beside their images."""
    return "masks" if any(item.mask and is_mask_clip(item.mask) for item in items) else ""


def _write_item(item: _Item, folder: Path, inner: str, masks: str) -> None:
    """Everything is read before anything is written, for an image whose mask is damaged is left out as well.

    masks: as from `_mask_folder`.
    """
    images: dict[Path, Image.Image] = {}
    files = {folder / inner / item.name: item.path} if item.crop is None else {}
    stem = folder / inner / item.stem
    of_mask = folder / masks / item.stem if masks else _with_ending(stem, "-mask")
    if item.crop:
        images[folder / inner / item.name] = _cut(item.path, item.crop)
    if caption := next((path for path in item.captions if os.path.isfile(path)), None):
        files[_with_ending(stem, os.path.splitext(caption)[1])] = caption
    if item.mask and item.crop:
        mask = load_gray_on_black(item.mask)
        if mask.size != item.crop.whole:
            mask = mask.resize(item.crop.whole, Image.Resampling.BILINEAR)  # as it is trained
        images[_with_ending(of_mask, ".png")] = item.crop.of(mask)
    elif item.mask:
        ending = "" if os.path.isdir(item.mask) else os.path.splitext(item.mask)[1]
        files[_with_ending(of_mask, ending)] = item.mask
    names = folder_settings()
    for setting, paths in item.paired.items():
        for number, path in enumerate(paths):
            place = folder / names[setting] / item.stem
            part = _cut_alike(path, item.crop) if item.crop else None
            if part is None:
                files[_with_ending(place, f"_{number}{os.path.splitext(path)[1]}")] = path
            else:
                images[_with_ending(place, f"_{number}.png")] = part
    for target in (*images, *files):
        target.parent.mkdir(parents=True, exist_ok=True)
    for target, image in images.items():
        image.save(target, format="PNG")
    for target, path in files.items():
        if os.path.isdir(path):
            shutil.copytree(path, target)
        else:
            shutil.copyfile(path, target)


def _with_ending(stem: Path, ending: str) -> Path:
    return stem.with_name(stem.name + ending)


def _cut(path: str, crop: SampleCrop) -> Image.Image:
    return crop.of(load_rgba(path) if may_be_transparent(path) else load_image(path))


def _cut_alike(path: str, crop: SampleCrop) -> Image.Image | None:
    """The part of a reference or a layer that shows the same; None for one of another shape, which is used whole."""
    image = load_rgba(path) if may_be_transparent(path) else load_image(path)
    return crop.of(image) if is_alike(image.size, crop.whole) else None


def _write_settings(concept: ConceptConfig, dataset: Dataset, items: Sequence[_Item], folder: Path) -> None:
    """The table of captions, and the crops of videos, which are not cut."""
    if concept.captions == "table":
        table = read_table(concept, "concepts.0")
        rows = [
            json.dumps({"file_name": item.name, "caption": caption}, ensure_ascii=False)
            for item in items
            for caption in table.get(path_in_concept(item.path, concept), ())
        ]
        (folder / TABLE).write_bytes("".join(f"{row}\n" for row in rows).encode("utf-8", "surrogatepass"))
    names = {item.path: item.name for item in items if item.crop is None}
    crops = {
        names[path]: ImageSetting(crop=crop.crop)
        for sample, path in enumerate(dataset.paths)
        if path in names and (crop := crop_of_sample(dataset, sample))
    }
    if crops:
        Path(settings_file(str(folder))).write_bytes(ImageSettings(crops).to_bytes())


def _concept_of(concept: ConceptConfig, folder: Path, inner: str, items: Sequence[_Item]) -> ConceptConfig:
    """The concept of the copy: what its settings have chosen is what is there."""
    chosen: dict[str, Any] = dict.fromkeys(("include", "exclude", "mask_folder", "caption_table", "caption_column"), "")
    for setting, name in folder_settings().items():
        chosen[setting] = str(folder / name) if any(item.paired.get(setting) for item in items) else ""
    if masks := _mask_folder(items):
        chosen["mask_folder"] = str(folder / masks)
    return replace(concept, path=str(folder / inner), include_subfolders=True, **chosen)
