"""The marks on the thumbnails of the dataset window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modules.ui.models.DatasetView import DatasetItem, Trait
from modules.ui.theme import Theme

if TYPE_CHECKING:
    from modules.ui.theme import Pair

UNREADABLE = "unreadable"
_OF_TRAITS: tuple[tuple[Trait, str, Pair], ...] = (
    (Trait.LEFT_OUT, "left out", Theme.muted),
    (Trait.BROKEN, UNREADABLE, Theme.error),
    (Trait.NO_CAPTION, "no caption", Theme.warning),
    (Trait.LONG, "too long", Theme.warning),
    (Trait.SMALL, "too small", Theme.warning),
)


def marks_of(item: DatasetItem) -> Sequence[tuple[str, Pair]]:
    """What is drawn over the thumbnail of an item, the most important first, each with its colour."""
    marks = [(text, colour) for trait, text, colour in _OF_TRAITS if item.traits & trait]
    if item.caption_problem and not item.problem:
        marks = [("bad caption" if text == UNREADABLE else text, colour) for text, colour in marks]
    if item.group:
        marks.insert(0, ("best", Theme.success) if item.is_best else ("duplicate", Theme.warning))
    if item.crop is not None:
        marks.append(("cropped", Theme.muted))
    return [*marks, ("mask", Theme.success)] if item.mask else marks
