"""What the dataset window knows of the images of a run: filters with counts, order, and what is shown. No Tk.

The images are those that training finds (data/concepts.py). Finding them opens no file, so that thousands are there at
once; sizes, captions and masks are read afterwards, a part at a time (models/dataset_reading.py).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import TYPE_CHECKING, Literal, NamedTuple

from modules.config.counted import counted
from modules.config.visible_text import visible_line

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.data.ImageSettings import Crop

Where = Literal["caption", "tag", "name"]
Order = Literal["name", "caption length", "size", "file size", "date"]
ORDERS: tuple[Order, ...] = ("name", "caption length", "size", "file size", "date")


class Trait(IntFlag):
    """What can be said of an image, of which each has any number."""

    NO_CAPTION = 1
    BROKEN = 2  # it, or its caption, can't be read
    SMALL = 4  # it is upscaled by more than a little
    NO_MASK = 8
    LEFT_OUT = 16  # by its settings
    DUPLICATE = 32  # it looks like others
    LONG = 64  # the base model does not read all of its caption
    READ = 128  # what of it is read from files is known
    PICKED = 256  # a bar of the statistics that was clicked counts it
    BLURRED = 512  # as of ImageMeasures, once it was measured, as is
    NOISY = 1024


NONE = Trait(0)
_STAYS = "\N{NO-BREAK SPACE}"
ALL = "All concepts"


@dataclass(slots=True)
class DatasetItem:
    """One image or video. concept: its number. path_below: in the concept's folder.

    What is read later: width, height: upright, in pixels; 0 until then, and of what can't be read. num_bytes, changed:
    of the file, the time in seconds. captions: as they are written; None without. mask: the path of its mask, "" if
    there is none. crop: of its settings. problem, caption_problem: why it, or
    its caption, can't be read.
    """

    path: str
    concept: int
    path_below: str
    traits: Trait = NONE
    width: int = 0
    height: int = 0
    num_bytes: int = 0
    changed: float = 0.0
    captions: tuple[str, ...] | None = None
    mask: str = ""
    crop: Crop | None = None
    problem: str = ""
    caption_problem: str = ""
    group: int = 0  # of images that look alike; 0: of none
    is_best: bool = False  # of its group
    sharpness: float = 0.0  # as of ImageMeasures, of an image in a group; else 0
    noise: float = 0.0  # the same
    words: str = ""  # its captions, for the search

    @property
    def trained_part(self) -> tuple[int, int]:
        """Width and height of what is trained of it, in pixels."""
        return (self.crop.width, self.crop.height) if self.crop else (self.width, self.height)

    @property
    def shown_part(self) -> tuple[int, ...]:
        """The crop and the size of the image, as of PictureKey; () for all of it, or while its size is not known."""
        return (*self.crop, self.width, self.height) if self.crop is not None and self.width else ()

    def set_trait(self, trait: Trait, holds: bool) -> None:
        self.traits = self.traits | trait if holds else self.traits & ~trait


class LookAlike(NamedTuple):
    """An image that looks like others. sharpness, noise: as of ImageMeasures."""

    path: str
    sharpness: float
    noise: float


@dataclass(frozen=True)
class Filter:
    """label: of the button. hint: what its images have in common."""

    label: str
    hint: str
    trait: Trait = NONE


FILTERS = {
    "all": Filter("All", "All images and videos of the dataset."),
    "no_caption": Filter("No caption", "Images whose caption is missing or empty.", Trait.NO_CAPTION),
    "broken": Filter("Unreadable", "Images that can't be opened, or whose caption can't be read.", Trait.BROKEN),
    "small": Filter("Too small", "Images that are upscaled to the training resolution.", Trait.SMALL),
    "long": Filter("Too long", "Captions that the base model does not read to their end.", Trait.LONG),
    "no_mask": Filter("No mask", "Images without a mask.", Trait.NO_MASK),
    "duplicate": Filter("Duplicates", "Images that look alike, as Find duplicates has found them.", Trait.DUPLICATE),
    "blurred": Filter("Blurred", "Images that are blurred or were enlarged, as Find duplicates sees.", Trait.BLURRED),
    "noisy": Filter("Noisy", "Images with plainly visible grain, as Find duplicates sees.", Trait.NOISY),
    "left_out": Filter("Left out", "Images that stay in the folder but aren't trained.", Trait.LEFT_OUT),
    "picked": Filter("Picked", "Images of the bar clicked in the statistics, or of a problem.", Trait.PICKED),
}


class DatasetView:
    """The items, by number, and those of them that pass the filter and the search, in order.

    separator: of tags, by the number of the concept.
    """

    def __init__(self):
        self.items: list[DatasetItem] = []
        self.separators: dict[int, str] = {}
        self.filter_name = "all"
        self.text = ""
        self.where: Where = "caption"
        self.order: Order = "name"
        self.is_descending = False
        self.shown: list[int] = []

    def take_items(self, items: Sequence[DatasetItem]) -> None:
        """Replace all items; filter, search and order stay."""
        self.items = list(items)
        self.update()

    def update(self) -> None:
        """Compute `shown` anew, after a change of the items or of what is wanted."""
        wanted = FILTERS[self.filter_name].trait
        numbers: Iterable[int] = range(len(self.items))
        if wanted:
            numbers = [number for number in numbers if self.items[number].traits & wanted]
        if self.text.strip():
            matches = self._matcher()
            numbers = [number for number in numbers if matches(self.items[number])]
        if self.filter_name == "duplicate" and self.order == "name":
            items = self.items
            self.shown = sorted(numbers, key=lambda one: (items[one].group, not items[one].is_best, one))
        elif self.order == "name" and not self.is_descending:
            self.shown = list(numbers)
        else:
            self.shown = sorted(numbers, key=self._key(), reverse=self.is_descending)

    def take_groups(self, groups: Sequence[Sequence[LookAlike]]) -> list[int]:
        """Mark the images that look alike, in place of those marked before; returns the worse ones.

        groups: in each the best image first.
        """
        of_path = {one.path: (number, one, one is group[0]) for number, group in enumerate(groups, 1) for one in group}
        for item in self.items:
            item.group, measured, item.is_best = of_path.get(item.path, (0, LookAlike("", 0.0, 0.0), False))
            item.sharpness, item.noise = measured.sharpness, measured.noise
            item.set_trait(Trait.DUPLICATE, bool(item.group))
        self.update()
        return [number for number, item in enumerate(self.items) if item.group and not item.is_best]

    def take_measured(self, blurred: Collection[str], noisy: Collection[str]) -> None:
        """Mark the images at these paths, in place of those marked before."""
        for trait, paths in ((Trait.BLURRED, set(blurred)), (Trait.NOISY, set(noisy))):
            for item in self.items:
                item.set_trait(trait, item.path in paths)

    @property
    def alike(self) -> list[int]:
        """The numbers of the images that look like others, by group, the best ones first."""
        found = [number for number, item in enumerate(self.items) if item.group]
        return sorted(found, key=lambda number: (self.items[number].group, not self.items[number].is_best))

    def mark_unreadable(self, number: int, reason: str) -> bool:
        """Mark an image that could be opened but can't be decoded. Returns whether this was not known."""
        item = self.items[number]
        if item.problem:
            return False
        item.problem = f"can't be read: {reason}"
        item.set_trait(Trait.BROKEN, True)
        return True

    def take_picked(self, paths: Collection[str]) -> None:
        """Mark these images, in place of those marked before."""
        wanted = set(paths)
        for item in self.items:
            item.set_trait(Trait.PICKED, item.path in wanted)
        self.update()

    def counts(self) -> dict[str, int]:
        """Filter -> the number of items that pass it."""
        kinds = Counter(int(item.traits) for item in self.items)
        found = {name: sum(kinds[kind] for kind in kinds if kind & one.trait) for name, one in FILTERS.items()}
        return found | {"all": len(self.items)}

    @property
    def num_read(self) -> int:
        """Of how many items size, caption and mask are known."""
        return sum(1 for item in self.items if item.traits & Trait.READ)

    def tags(self, numbers: Iterable[int] | None = None) -> Counter[str]:
        """How often each tag occurs in the captions, by default of all items."""
        chosen = range(len(self.items)) if numbers is None else numbers
        return Counter(tag for number in chosen for tag in self._tags_of(self.items[number]))

    def summary(self, num_selected: int) -> str:
        """What is shown, in words."""
        text = f"{len(self.shown):,} of {counted(len(self.items), 'image')}" if self.is_narrowed else ""
        text = text or counted(len(self.items), "image")
        return text + (f", {num_selected:,} selected" if num_selected > 1 else "")

    @property
    def is_narrowed(self) -> bool:
        return self.filter_name != "all" or bool(self.text.strip())

    def _matcher(self) -> Callable[[DatasetItem], bool]:
        text = self.text.strip().casefold()
        if self.where == "tag":
            return lambda item: text in map(str.casefold, self._tags_of(item))
        words = text.split()
        if self.where == "name":
            return lambda item: all(word in item.path_below.casefold() for word in words)
        return lambda item: all(word in item.words for word in words)

    def _tags_of(self, item: DatasetItem) -> list[str]:
        separator = self.separators.get(item.concept, ",").strip() or ","
        return [tag for text in item.captions or () for part in text.split(separator) if (tag := part.strip())]

    def _key(self) -> Callable[[int], float]:
        items = self.items
        keys: dict[Order, Callable[[int], float]] = {
            "name": lambda number: number,
            "caption length": lambda number: len(items[number].words),
            "size": lambda number: items[number].width * items[number].height,
            "file size": lambda number: items[number].num_bytes,
            "date": lambda number: items[number].changed,
        }
        return keys[self.order]


def concept_names(concepts: Sequence[ConceptConfig]) -> list[str]:
    """What concepts are called in a list of them, each differently, and none like `ALL`."""
    names = [
        visible_line(concept.name or os.path.basename(os.path.normpath(concept.path)) or "new")[:60]
        for concept in concepts
    ]
    twice = {name for name in names if names.count(name) > 1} | {ALL}
    return [f"{name} ({number})" if name in twice else name for number, name in enumerate(names, 1)]


def describe(item: DatasetItem) -> str:
    """What is known of an image, in a line or two. What is wrong with its caption is said beside that."""
    parts = [item.path_below]
    if item.width:
        parts.append(size_in_pixels(item.width, item.height))
    if item.crop is not None:
        parts.append(f"cropped to {size_in_pixels(item.crop.width, item.crop.height)}")
    if item.num_bytes:
        parts.append(size_text(item.num_bytes))
    if item.mask:
        parts.append(f"mask {os.path.basename(item.mask)}")
    if item.captions and len(item.captions) > 1:
        parts.append(counted(len(item.captions), "caption"))
    return "   ".join(parts) + (f"\n{item.problem}" if item.problem else "")


def size_in_pixels(width: int, height: int) -> str:
    """Width and height, which stay on one line."""
    return f"{width}{_STAYS}x{_STAYS}{height}"


def size_text(num_bytes: int) -> str:
    """The size of a file, in words that stay on one line."""
    kib = num_bytes / 1024
    if kib < 1:
        return f"{num_bytes}{_STAYS}bytes"
    return f"{kib:,.0f}{_STAYS}KB" if kib < 1024 else f"{kib / 1024:,.1f}{_STAYS}MB"
