"""The figures of a dataset as lines of a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from modules.config.counted import counted

if TYPE_CHECKING:
    from modules.curation.duplicates import Duplicates
    from modules.curation.statistics import BucketFill, DatasetStatistics

LISTED_BUCKETS = 12
LISTED_TAGS = 10
LISTED_GROUPS = 5
_BAR = 30  # characters of the longest bar


def report_lines(statistics: DatasetStatistics, duplicates: Sequence[Duplicates] = ()) -> Iterator[str]:
    """Each title with its rows below, which are indented."""
    yield from _groups(duplicates)
    yield from _plot("Aspect ratios", statistics.aspects)
    yield from _plot("Shorter side, in pixels", statistics.sides)
    yield from _plot("Upscaled to fill the bucket", statistics.upscaling)
    yield from _buckets(statistics.buckets, statistics)
    yield from _plot("Seconds of videos", statistics.seconds)
    yield from _plot("Words of captions", statistics.words)
    yield from _plot("Tokens of captions", statistics.tokens)
    shown = dict(list(statistics.tags.items())[:LISTED_TAGS])
    more = f", the most frequent of {statistics.num_tags:,}" if len(shown) < statistics.num_tags else ""
    yield from _plot(f"Tags{more}", shown)
    if statistics.num_single_tags:
        single = ", ".join(statistics.single_tags[:LISTED_TAGS])
        more = ", ..." if statistics.num_single_tags > LISTED_TAGS else ""
        yield f"Tags of one image only: {statistics.num_single_tags:,}"
        yield f"  {single}{more}"


def _groups(duplicates: Sequence[Duplicates]) -> Iterator[str]:
    if duplicates:
        yield f"Near-duplicates: {counted(len(duplicates), 'image has others like it', 'images have others like them')}"
        for group in duplicates[:LISTED_GROUPS]:
            yield f"  {group.best}"
            yield from (f"    like it: {path}" for path in group.others[:LISTED_GROUPS])
            if len(group.others) > LISTED_GROUPS:
                yield f"    ... and {len(group.others) - LISTED_GROUPS} more"
        if len(duplicates) > LISTED_GROUPS:
            yield f"  ... and {len(duplicates) - LISTED_GROUPS} more"


def _buckets(buckets: Sequence[BucketFill], statistics: DatasetStatistics) -> Iterator[str]:
    if not buckets:
        return
    share = f"{statistics.mixed_share:.0%} of them in steps of mixed shapes"
    yield f"Buckets, samples of an epoch in steps of {statistics.batch}: {share}"
    rows = {
        fill.name: (fill.samples, f"{fill.samples:g} = {fill.whole_steps} x {statistics.batch} + {fill.rest:g}")
        for fill in buckets[:LISTED_BUCKETS]
    }
    yield from _rows({name: count for name, (count, _) in rows.items()}, [text for _, text in rows.values()])
    if len(buckets) > LISTED_BUCKETS:
        yield f"  ... and {len(buckets) - LISTED_BUCKETS} more"


def _plot(title: str, counts: Mapping[str, int]) -> Iterator[str]:
    if counts:
        yield title
        yield from _rows(counts, [f"{count:,}" for count in counts.values()])


def _rows(counts: Mapping[str, float], texts: Sequence[str]) -> Iterator[str]:
    """A row with a bar for each label. texts: what stands for each count."""
    width, text_width = max(map(len, counts)), max(map(len, texts))
    most = max(counts.values())
    for (label, count), text in zip(counts.items(), texts, strict=True):
        bar = "#" * max(round(_BAR * count / most), bool(count)) if most else ""
        yield f"  {label:<{width}}  {text:>{text_width}}  {bar}".rstrip()
