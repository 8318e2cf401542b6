"""Figures of a dataset as a run would train it, as plain data for plots and reports."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from modules.data.clips import num_clips
from modules.data.crops import CROP

if TYPE_CHECKING:
    from modules.data.buckets import Buckets
    from modules.data.Dataset import Dataset

# Width to height, from the tallest to the widest; each image counts for the nearest.
ASPECTS = (
    (9, 21), (1, 2), (9, 16), (2, 3), (3, 4), (4, 5), (1, 1), (5, 4), (4, 3), (3, 2), (16, 9), (2, 1), (21, 9),
)  # fmt: skip
SIDES = (256, 512, 768, 1024, 1536, 2048, 4096)  # pixels, of the shorter side
FACTORS = (1.0, 1.1, 1.5, 2.0)  # by which images are upscaled
WORDS = (1, 10, 20, 40, 60, 120)
TOKENS = (1, 20, 40, 76, 151, 226, 513)
SECONDS = (1, 2, 5, 10, 30, 60, 300)
MOST_TAGS = 100
COUNTED = ("aspects", "sides", "upscaling", "words", "tokens", "tags", "seconds")  # figures that are numbers of images
_WORDS_OF_A_TAG = 4  # on average; of sentences, a part between two commas has more

Groups = dict[str, list[str]]
"""Label -> the paths of the images that it counts."""


@dataclass(frozen=True)
class BucketFill:
    """The samples of one shape in an epoch, and how they fill the steps.

    samples: expected, for repeats may be fractions. whole_steps: that have samples of this shape alone. rest: samples
    that are left, which train in slower steps of mixed shapes.
    """

    name: str
    samples: float
    whole_steps: int
    rest: float


@dataclass(frozen=True)
class DatasetStatistics:
    """Each mapping goes from a label to a number of images, in the order of what the labels say.

    num_images: images and clips. batch: samples of an optimizer step. aspects, sides: of the images as they are
    cropped, sides being the shorter ones in pixels. upscaling: by what factor images are enlarged to fill their bucket.
    buckets: the largest first. words, tokens: of captions; tokens is empty without a tokenizer. tags: the most frequent
    ones of captions that are lists of tags. num_tags: different ones. single_tags: the first of those that only one
    image has, in alphabetical order. num_single_tags: all of those. seconds: the durations of videos, by number of
    videos. paths: figure -> label -> the images that it counts, one entry for each caption where captions are counted.
    """

    num_images: int
    num_clips: int
    num_cropped: int
    num_set_aside: int
    batch: int
    aspects: Mapping[str, int]
    sides: Mapping[str, int]
    upscaling: Mapping[str, int]
    buckets: Sequence[BucketFill]
    words: Mapping[str, int] = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=dict)
    tags: Mapping[str, int] = field(default_factory=dict)
    num_tags: int = 0
    single_tags: Sequence[str] = ()
    num_single_tags: int = 0
    seconds: Mapping[str, int] = field(default_factory=dict)
    paths: Mapping[str, Groups] = field(default_factory=dict, repr=False)

    @property
    def mixed_share(self) -> float:
        """The share of an epoch's samples that trains in steps of mixed shapes."""
        samples = sum(bucket.samples for bucket in self.buckets)
        return sum(bucket.rest for bucket in self.buckets) / samples if samples else 0.0


def dataset_statistics(
    dataset: Dataset,
    buckets: Buckets,
    texts: Sequence[tuple[str, ...]] = (),
    batch: int = 1,
    num_tokens: Mapping[str, int] | None = None,
    token_limit: int | None = None,
) -> DatasetStatistics:
    """The figures of a dataset.

    dataset, buckets: as from `prepare_data`. texts: as from `captions`, if the run uses captions. batch: samples of an
    optimizer step. num_tokens: caption -> its tokens, if a tokenizer has counted them. token_limit: how many the base
    model reads, after which a range ends.
    """
    images = dataset.images_of(range(len(dataset)))
    names = [dataset.paths[image] for image in images]
    widths, heights = dataset.widths[images], dataset.heights[images]
    crops = dataset.column(CROP)
    factors = np.zeros(len(dataset))
    np.maximum.at(factors, dataset.first_views, upscale_factors(dataset, buckets))
    told = (
        [(name, option) for name, image in zip(names, images, strict=True) for option in texts[image]] if texts else []
    )
    separators = [dataset.concepts[number].tag_separator for number in dataset.concept_index[images].tolist()]
    of_images = ((name, texts[image]) for name, image in zip(names, images, strict=True)) if texts else ()
    tags = tagged_paths((name, options, by) for (name, options), by in zip(of_images, separators, strict=False))
    frequent = dict(sorted(tags.items(), key=lambda pair: (-len(pair[1]), pair[0]))[:MOST_TAGS])
    single = sorted(tag for tag, paths in tags.items() if len(paths) == 1)
    tokens = [(name, num_tokens[text]) for name, text in told if text in num_tokens] if num_tokens else []
    paths: dict[str, Groups] = {
        "aspects": _by_aspect(names, widths / heights),
        "sides": _binned(zip(names, np.minimum(widths, heights).tolist(), strict=True), SIDES),
        "upscaling": _by_factor(names, factors[images]),
        "buckets": _by_bucket(dataset, buckets),
        "words": _binned(((name, len(text.split())) for name, text in told), WORDS),
        "tokens": _binned(tokens, token_starts(token_limit)),
        "tags": frequent,
        "single_tags": {tag: tags[tag] for tag in single[:MOST_TAGS]},
        "seconds": _binned(((path, info.seconds) for path, info in dataset.videos.items()), SECONDS),
    }
    counts = {figure: {label: len(found) for label, found in groups.items()} for figure, groups in paths.items()}
    return DatasetStatistics(
        num_images=dataset.num_images,
        num_clips=num_clips(dataset) if dataset.videos else 0,
        num_cropped=sum(crops[image] is not None for image in images) if crops else 0,
        num_set_aside=len(dataset.set_aside),
        batch=batch,
        buckets=bucket_fill(dataset, buckets, batch),
        num_tags=len(tags),
        single_tags=single[:MOST_TAGS],
        num_single_tags=len(single),
        paths=paths,
        **{figure: counts[figure] for figure in COUNTED},
    )


def upscale_factors(dataset: Dataset, buckets: Buckets) -> np.ndarray:
    """float64[N]: by what factor each sample is enlarged to fill its bucket; below 1 for one that is reduced."""
    shapes = np.array(buckets.shapes)[buckets.index]
    return np.maximum(shapes[:, 0] / dataset.widths, shapes[:, 1] / dataset.heights)


def bucket_fill(dataset: Dataset, buckets: Buckets, batch: int) -> list[BucketFill]:
    """How the shapes in use fill steps of `batch` samples, the shapes with the most samples first."""
    first, num_views = dataset.first_views, dataset.num_views
    expected = dataset.repeats[first] / np.maximum(num_views[first], 1)
    samples = np.bincount(buckets.index, expected, len(buckets.shapes))
    fills = []
    for name, count in zip(buckets.names, samples.tolist(), strict=True):
        whole = int(count // batch)
        fills.append(BucketFill(name, round(count, 3), whole, round(count - whole * batch, 3)))
    return sorted((fill for fill in fills if fill.samples), key=lambda fill: (-fill.samples, fill.name))


def tagged_paths(captions: Iterable[tuple[str, Sequence[str], str]]) -> Groups:
    """The images that have each tag, of those whose captions are lists of tags.

    captions: of each image its path, the alternatives, and the separator of its tags.
    """
    found: Groups = {}
    for path, options, separator in captions:
        tags: dict[str, None] = {}
        for option in options:
            parts = [tag for part in option.split(separator) if (tag := " ".join(part.split()))] if separator else []
            if len(parts) > 1 and len(option.split()) <= _WORDS_OF_A_TAG * len(parts):
                tags |= dict.fromkeys(parts)
        for tag in tags:
            found.setdefault(tag, []).append(path)
    return found


def token_starts(limit: int | None) -> list[int]:
    """Where the ranges of tokens begin. limit: how many the base model reads, if that is known."""
    return sorted({*TOKENS, limit + 1} if limit is not None else TOKENS)


def place_in(value: float, starts: Sequence[int]) -> float:
    """Where a value lies among the ranges from each of `starts` to the next: 0 to 1 in the one below the first."""
    number = int(np.searchsorted(starts, value, side="right"))
    if number == len(starts):
        return number + 0.5  # the last range has no end
    low = starts[number - 1] if number else 0
    return number + (value - low) / (starts[number] - low)


def range_labels(starts: Sequence[int]) -> list[str]:
    """What the ranges below the first of `starts`, from each to the next, and above are called."""
    labels = [f"below {starts[0]}" if starts[0] > 1 else "none"]
    labels += [f"{low} to {high - 1}" if high - low > 1 else str(low) for low, high in itertools.pairwise(starts)]
    return [*labels, f"{starts[-1]} or more"]


def _by_aspect(paths: Sequence[str], aspects: np.ndarray) -> Groups:
    # sqrt and * round alike everywhere, log does not
    values = [width / height for width, height in ASPECTS]
    borders = [math.sqrt(low * high) for low, high in itertools.pairwise(values)]
    return _without_ends(_grouped(paths, np.searchsorted(borders, aspects), [f"{w}:{h}" for w, h in ASPECTS]))


def _by_factor(paths: Sequence[str], factors: np.ndarray) -> Groups:
    labels = ["not upscaled", *(f"up to {factor:g} x" for factor in FACTORS[1:]), f"more than {FACTORS[-1]:g} x"]
    return _grouped(paths, np.searchsorted(FACTORS, factors), labels) if len(factors) else {}


def _by_bucket(dataset: Dataset, buckets: Buckets) -> Groups:
    """The images of which at least one view has this shape."""
    groups: dict[str, dict[str, None]] = {}
    for bucket, image in zip(buckets.index.tolist(), dataset.first_views.tolist(), strict=True):
        groups.setdefault(buckets.names[bucket], {})[dataset.paths[image]] = None
    return {name: list(paths) for name, paths in groups.items()}


def _binned(values: Iterable[tuple[str, float]], starts: Sequence[int]) -> Groups:
    """The paths of values below the first of `starts`, from each to the next, and above."""
    pairs = list(values)
    if not pairs:
        return {}
    numbers = np.searchsorted(starts, [value for _, value in pairs], side="right")
    return _without_ends(_grouped([path for path, _ in pairs], numbers, range_labels(starts)))


def _grouped(paths: Sequence[str], numbers: np.ndarray, labels: Sequence[str]) -> Groups:
    """numbers: int64[N], which label each path gets."""
    groups: Groups = {label: [] for label in labels}
    for path, number in zip(paths, numbers.tolist(), strict=True):
        groups[labels[number]].append(path)
    return groups


def _without_ends(groups: Groups) -> Groups:
    """Without the labels in front of the first image and behind the last one."""
    labels = list(groups)
    used = [number for number, label in enumerate(labels) if groups[label]]
    return {label: groups[label] for label in labels[used[0] : used[-1] + 1]} if used else {}
