"""The figures of a dataset without decoding it, for the terminal and, while they are being read, for the window."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from modules.config.batch_size import global_batch
from modules.config.methods import facts_of
from modules.config.TrainConfig import TrainConfig
from modules.curation.statistics import DatasetStatistics, dataset_statistics
from modules.curation.TokenCounts import TokenCounts
from modules.data.concepts import captions
from modules.data.image_views import resolutions_of
from modules.data.prepare import prepare_data
from modules.families.registry import FAMILIES

COUNTED = 2000  # captions whose tokens are counted between two looks of the window


@dataclass(frozen=True)
class Figures:
    """statistics: with what is read so far. reading: what is read next, "" at the end. resolutions: those that the
    images train at, in pixels. token_limit: what the base model reads of a caption; None if it is not known."""

    statistics: DatasetStatistics
    reading: str
    resolutions: Sequence[int]
    token_limit: int | None = None


def read_figures(config: TrainConfig, num_ranks: int) -> Iterator[Figures]:
    """Shapes first, then captions, then a part of the tokens at a time. Raises DataError for what can't train."""
    dataset, buckets = prepare_data(config, FAMILIES[config.family])
    batch = global_batch(config, num_ranks)
    used = {size for one in dataset.concepts if one.enabled for size in resolutions_of(one, config.data)}
    if not facts_of(config).uses_captions:
        yield Figures(dataset_statistics(dataset, buckets, (), batch), "", sorted(used))
        return
    yield Figures(dataset_statistics(dataset, buckets, (), batch), "Reading captions", sorted(used))
    texts = captions(dataset, unreadable={})
    told = list(dict.fromkeys(text for options in texts for text in options))
    counted: dict[str, int] = {}
    counts, limit = TokenCounts(config.family, config.model), None
    try:
        for start in range(0, len(told), COUNTED):
            found = dataset_statistics(dataset, buckets, texts, batch, counted, limit)
            yield Figures(found, f"Counting tokens, {start / len(told):.0%}", sorted(used), limit)
            part = told[start : start + COUNTED]
            lengths = counts.count(part)
            if counts.note:  # there is no tokenizer: words have to do
                break
            counted |= {text: length.count for text, length in zip(part, lengths, strict=True)}
            limit = lengths[0].limit
    finally:
        counts.close()
    yield Figures(dataset_statistics(dataset, buckets, texts, batch, counted, limit), "", sorted(used), limit)


def json_lines(figures: Figures, *, with_images: bool) -> Iterator[str]:
    """A line with the figures.

    with_images: also one with the paths of all images, and for each figure one with the places of those that each label
    counts in that list.
    """
    found = figures.statistics
    values = {one.name: getattr(found, one.name) for one in dataclasses.fields(found) if one.name != "paths"}
    values["buckets"] = [dataclasses.asdict(fill) for fill in found.buckets]
    values["mixed_share"] = found.mixed_share
    told = {"resolutions": list(figures.resolutions), "token_limit": figures.token_limit, "reading": figures.reading}
    yield json.dumps({"event": "figures", **told, "statistics": values})
    if not with_images:
        return
    every = list(dict.fromkeys(path for groups in found.paths.values() for one in groups.values() for path in one))
    places = {path: place for place, path in enumerate(every)}
    yield json.dumps({"event": "files", "paths": every})
    for figure, groups in found.paths.items():
        images = {label: [places[path] for path in dict.fromkeys(paths)] for label, paths in groups.items()}
        yield json.dumps({"event": "images", "figure": figure, "images": images})
