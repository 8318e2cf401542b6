"""Find the images of concepts, and read what the dataset window shows of them. No Tk; for use in threads.

Nothing here decides what belongs to a dataset: the functions are those that training uses.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from modules.config.clips import clip_rule
from modules.config.errors import UserError
from modules.data.caption_tables import read_table
from modules.data.captions import Table, has_fallback, lacks_text, own_captions, path_in_concept
from modules.data.concepts import find_images
from modules.data.Dataset import Dataset
from modules.data.errors import DataError, ImageError
from modules.data.folder_walk import Outputs
from modules.data.images import size_or_reason
from modules.data.masks import find_masks
from modules.data.videos import files_of, info_or_reason, is_video
from modules.ui.models.DatasetView import DatasetItem, Trait
from modules.ui.models.training_fit import mark_small

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.config.TrainConfig import TrainConfig

PART_SECONDS = 0.05  # of reading, after which what is known so far is shown


@dataclass(frozen=True)
class Listing:
    """items: what training finds, in its order. tables: the caption tables of concepts that use one, by number.

    problems: for each concept that can't be read, a sentence.
    """

    items: list[DatasetItem] = field(default_factory=list)
    tables: dict[int, Table] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def list_items(config: TrainConfig, numbers: Sequence[int], is_wanted: Callable[[], bool] = lambda: True) -> Listing:
    """The images and videos of these concepts, enabled or not. Opens no image."""
    listing = Listing()
    outputs, takes_videos = Outputs.of(config), clip_rule(config) is not None
    for number in numbers:
        concept, setting = config.concepts[number], f"concepts.{number}"
        try:
            found, _ = find_images(concept, setting, is_wanted, outputs, takes_videos, with_left_out=True)
            if concept.captions == "table":
                listing.tables[number] = read_table(concept, setting)
        except UserError as error:
            listing.problems.append(str(error))
            continue
        for image in found:
            item = DatasetItem(image.path, number, path_in_concept(image.path, concept), crop=image.crop)
            item.set_trait(Trait.NO_CAPTION, not image.has_caption)
            item.set_trait(Trait.LEFT_OUT, image.left_out)
            listing.items.append(item)
    return listing


def find_item_masks(
    concepts: Sequence[ConceptConfig] | Mapping[int, ConceptConfig], items: Sequence[DatasetItem]
) -> list[str]:
    """The path of each item's mask, "" if it has none. That a mask folder is unusable is said elsewhere.

    concepts: by their numbers.
    """
    masks = [""] * len(items)
    for number in {item.concept for item in items}:
        of_concept = [place for place, item in enumerate(items) if item.concept == number]
        paths = [items[place].path for place in of_concept]
        ones = np.ones(len(paths), np.int32)
        dataset = Dataset([concepts[number]], paths, np.zeros(len(paths), np.int32), ones, ones, [])
        try:
            found = find_masks(dataset)
        except DataError:
            continue
        for place, mask in zip(of_concept, found, strict=True):
            masks[place] = mask or ""
    return masks


def read_details(
    config: TrainConfig, tables: dict[int, Table], items: Sequence[DatasetItem], seconds: float = PART_SECONDS
) -> list[DatasetItem]:
    """Copies of the first of these items with their size, file and caption; as many as can be read in `seconds`."""
    end = time.monotonic() + seconds
    read: list[DatasetItem] = []
    for item in items:
        read.append(_with_details(item, config.concepts[item.concept], tables.get(item.concept)))
        if time.monotonic() > end:
            break
    mark_small(config, read)
    return read


def read_caption(item: DatasetItem, concept: ConceptConfig, table: Table | None) -> None:
    """Set the caption of an item, and what it says of it."""
    try:
        item.captions = own_captions(item.path, concept, table)
    except UserError as error:
        item.captions, item.words, item.caption_problem = None, "", str(error)
        item.set_trait(Trait.BROKEN, True)
        return
    item.words = " ".join(item.captions or ()).casefold()
    is_missing = not any(item.captions or ()) or lacks_text(item.captions, concept)
    item.set_trait(Trait.NO_CAPTION, is_missing and not has_fallback(concept))


def _with_details(item: DatasetItem, concept: ConceptConfig, table: Table | None) -> DatasetItem:
    made = replace(item, traits=item.traits | Trait.READ, problem="", caption_problem="")
    made.set_trait(Trait.BROKEN, False)
    try:
        stats = [os.stat(path) for path in files_of(item.path)]
        made.num_bytes, made.changed = sum(one.st_size for one in stats), max(one.st_mtime for one in stats)
    except (OSError, ImageError, ValueError):
        made.num_bytes = 0  # it has gone, which its size will tell
    video = is_video(item.path)
    size = info_or_reason(item.path, concept.frame_folders_fps) if video else size_or_reason(item.path)
    if isinstance(size, str):
        made.problem = f"can't be read: {size}"
        made.set_trait(Trait.BROKEN, True)
    else:
        made.width, made.height = size[0], size[1]
    read_caption(made, concept, table)
    return made
