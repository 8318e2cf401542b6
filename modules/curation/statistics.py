"""Figures of a dataset as a run would train it, as plain data for plots and reports."""

from __future__ import annotations

import itertools
import math
from collections import Counter
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
_WORDS_OF_A_TAG = 4  # on average; of sentences, a part between two commas has more


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
    ones of captions that are lists of tags. num_tags: different ones. seconds: the durations of videos, by number of
    videos.
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
    seconds: Mapping[str, int] = field(default_factory=dict)

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
) -> DatasetStatistics:
    """The figures of a dataset.

    dataset, buckets: as from `prepare_data`. texts: as from `captions`, if the run uses captions. batch: samples of an
    optimizer step. num_tokens: caption -> its tokens, if a tokenizer has counted them.
    """
    images = dataset.images_of(range(len(dataset)))
    widths, heights = dataset.widths[images], dataset.heights[images]
    crops = dataset.column(CROP)
    factors = np.zeros(len(dataset))
    np.maximum.at(factors, dataset.first_views, upscale_factors(dataset, buckets))
    told = [option for image in images for option in texts[image]] if texts else []
    separators = [dataset.concepts[number].tag_separator for number in dataset.concept_index[images].tolist()]
    tags = tag_counts(zip((texts[image] for image in images), separators, strict=True) if texts else ())
    return DatasetStatistics(
        num_images=dataset.num_images,
        num_clips=num_clips(dataset) if dataset.videos else 0,
        num_cropped=sum(crops[image] is not None for image in images) if crops else 0,
        num_set_aside=len(dataset.set_aside),
        batch=batch,
        aspects=_by_aspect(widths / heights),
        sides=_binned(np.minimum(widths, heights).tolist(), SIDES),
        upscaling=_by_factor(factors[images]),
        buckets=bucket_fill(dataset, buckets, batch),
        words=_binned([len(text.split()) for text in told], WORDS),
        tokens=_binned([num_tokens[text] for text in told if text in num_tokens], TOKENS) if num_tokens else {},
        tags=dict(sorted(tags.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_TAGS]),
        num_tags=len(tags),
        seconds=_binned([info.seconds for info in dataset.videos.values()], SECONDS),
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


def tag_counts(captions: Iterable[tuple[Sequence[str], str]]) -> Counter[str]:
    """How many images have each tag, of those whose captions are lists of tags.

    captions: of each image the alternatives, and the separator of its tags.
    """
    counts: Counter[str] = Counter()
    for options, separator in captions:
        found: dict[str, None] = {}
        for option in options:
            tags = [tag for part in option.split(separator) if (tag := " ".join(part.split()))] if separator else []
            if len(tags) > 1 and len(option.split()) <= _WORDS_OF_A_TAG * len(tags):
                found |= dict.fromkeys(tags)
        counts.update(found.keys())
    return counts


def _by_aspect(aspects: np.ndarray) -> dict[str, int]:
    # sqrt and * round alike everywhere, log does not
    values = [width / height for width, height in ASPECTS]
    borders = [math.sqrt(low * high) for low, high in itertools.pairwise(values)]
    counts = np.bincount(np.searchsorted(borders, aspects), minlength=len(ASPECTS))
    return _without_ends({f"{w}:{h}": count for (w, h), count in zip(ASPECTS, counts.tolist(), strict=True)})


def _by_factor(factors: np.ndarray) -> dict[str, int]:
    labels = ["not upscaled", *(f"up to {factor:g} x" for factor in FACTORS[1:]), f"more than {FACTORS[-1]:g} x"]
    counts = np.bincount(np.searchsorted(FACTORS, factors), minlength=len(labels))
    return dict(zip(labels, counts.tolist(), strict=True)) if len(factors) else {}


def _binned(values: Sequence[float], starts: Sequence[int]) -> dict[str, int]:
    """How many values are below the first of `starts`, from each to the next, and above."""
    if not values:
        return {}
    labels = [f"below {starts[0]}" if starts[0] > 1 else "none"]
    labels += [f"{low} to {high - 1}" if high - low > 1 else str(low) for low, high in itertools.pairwise(starts)]
    labels.append(f"{starts[-1]} or more")
    counts = np.bincount(np.searchsorted(starts, values, side="right"), minlength=len(labels))
    return _without_ends(dict(zip(labels, counts.tolist(), strict=True)))


def _without_ends(counts: dict[str, int]) -> dict[str, int]:
    """Without the labels in front of the first image and behind the last one."""
    labels = list(counts)
    used = [number for number, label in enumerate(labels) if counts[label]]
    return {label: counts[label] for label in labels[used[0] : used[-1] + 1]} if used else {}
