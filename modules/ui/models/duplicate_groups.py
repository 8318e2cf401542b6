"""Groups of images that look alike, as the dataset window compares them. No Tk."""

from __future__ import annotations

from collections.abc import Sequence

from modules.curation.duplicates import Quality
from modules.ui.models.DatasetView import DatasetItem, Trait, size_text


def members_of(items: Sequence[DatasetItem], group: int) -> list[DatasetItem]:
    """The images of a group, the best one first; none of group 0."""
    found = [item for item in items if item.group == group] if group else []
    return sorted(found, key=lambda item: (not item.is_best, quality_of(item).order, item.path))


def num_groups(items: Sequence[DatasetItem]) -> int:
    return max((item.group for item in items), default=0)


def quality_of(item: DatasetItem) -> Quality:
    return Quality(item.width * item.height, item.sharpness, item.noise, item.num_bytes)


def one_to_keep(members: Sequence[DatasetItem]) -> int:
    """The number of the image that is kept so far: the best one of those that are not left out."""
    return next((number for number, item in enumerate(members) if not item.traits & Trait.LEFT_OUT), 0)


def facts_of(item: DatasetItem) -> tuple[str, str]:
    """What of an image is compared, in two lines."""
    return (
        f"{item.width} x {item.height}, {size_text(item.num_bytes)}",
        f"sharpness {item.sharpness:.2f}, noise {item.noise:.1f}",
    )


def why(members: Sequence[DatasetItem], number: int) -> str:
    """Why the first of a group, best first, is the best one, or why another one is worse than it."""
    best, other = quality_of(members[0]), quality_of(members[number or 1])
    if number:
        return f"Worse: {other.explain(best) or 'a copy of the best one'}"
    return f"Best: {best.explain(other) or 'nothing differs'}"
