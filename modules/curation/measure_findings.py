"""What the dataset check says of the pixels of images: near-duplicates, blur, noise, and images that are turned."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from modules.curation.duplicates import Candidate, Duplicates, find_duplicates
from modules.curation.measures import ImageMeasures
from modules.data.crops import whole_size
from modules.data.Finding import Finding, finding_of

if TYPE_CHECKING:
    from modules.data.Dataset import Dataset


def duplicates_in(dataset: Dataset, measures: Mapping[str, ImageMeasures]) -> list[Duplicates]:
    """The groups of images that look alike. measures: by path, of the images that were measured."""
    found: dict[str, Candidate] = {}
    for sample in dataset.images_of(range(len(dataset))):
        path = dataset.paths[sample]
        if path in measures and path not in found:
            width, height = whole_size(dataset, sample)
            found[path] = Candidate(path, width * height, _bytes_of(path), measures[path])
    return find_duplicates(list(found.values()))


def measure_findings(
    dataset: Dataset, measures: Mapping[str, ImageMeasures], duplicates: list[Duplicates]
) -> Iterator[Finding]:
    """Notes, for none of it is wrong in every dataset. duplicates: as from `duplicates_in`."""
    if duplicates:
        one = "image looks like a better one and may be left out"
        several = "images look like better ones and may be left out"
        others = [path for group in duplicates for path in group.others]
        yield finding_of("near_duplicate", "note", one, several, others, f" (like {duplicates[0].best})")
    seen = [(path, measures[path]) for path in dict.fromkeys(dataset.paths) if path in measures]
    for kind, one, several, paths in (
        (
            "blurred",
            "image is blurred or was enlarged",
            "images are blurred or were enlarged",
            [path for path, one in sorted(seen, key=lambda pair: pair[1].sharpness) if one.is_blurred],
        ),
        (
            "noisy",
            "image is noisy",
            "images are noisy",
            [path for path, one in sorted(seen, key=lambda pair: -pair[1].noise) if one.is_noisy],
        ),
        (
            "turned",
            "image is turned upright by its orientation tag, which some programs ignore",
            "images are turned upright by their orientation tags, which some programs ignore",
            [path for path, one in seen if one.orientation != 1],
        ),
    ):
        if paths:
            yield finding_of(kind, "note", one, several, paths)


def _bytes_of(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:  # removed since it was measured
        return 0
