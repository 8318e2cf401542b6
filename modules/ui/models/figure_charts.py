"""The figures of a dataset as charts: bars with labels, values and marks. No Tk."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modules.config.counted import counted
from modules.curation.statistics import SIDES, place_in, range_labels, token_starts

if TYPE_CHECKING:
    from modules.ui.models.FiguresReading import KnownFigures

MOST_BARS = 24  # of a chart: those with fewer images follow in words


@dataclass(frozen=True)
class Bar:
    """label: as the figure has it. value: its length. dark: how much of that is drawn in the second color. text: its
    value in words."""

    label: str
    value: float
    text: str
    dark: float = 0.0


@dataclass(frozen=True)
class Mark:
    """A line between two bars. place: how many bars are above it."""

    place: int
    text: str


@dataclass(frozen=True)
class Chart:
    """figure: the name of its figure. note: a sentence below the title. more: what is not drawn, in words."""

    figure: str
    title: str
    bars: Sequence[Bar]
    note: str = ""
    marks: Sequence[Mark] = ()
    more: str = ""


def charts_of(known: KnownFigures) -> list[Chart]:
    """The charts that have something to show, in the order in which they are read."""
    found = known.statistics
    tokens_or_words = _lengths(known)
    charts = [
        _counts("aspects", "Aspect ratios", found, "Width to height; each image counts for the nearest."),
        _buckets(known),
        _sides(known),
        _counts("upscaling", "Upscaled to fill the bucket", found, "Above 1.5 x, it shows in what the model learns."),
        _counts("seconds", "Lengths of videos", found, "In seconds."),
        tokens_or_words,
        _counts("tags", "Most frequent tags", found, f"Of {counted(found['num_tags'], 'tag')} in captions."),
        _single_tags(found),
    ]
    return [chart for chart in charts if chart.bars]


def summary_of(known: KnownFigures) -> str:
    """How much there is, and how it fills the steps, in a line."""
    found = known.statistics
    samples = sum(one["samples"] for one in found["buckets"])
    parts = [counted(found["num_images"], "image")]
    if found["num_clips"]:
        parts[0] += f", {counted(found['num_clips'], 'clip')} among them"
    parts += [f"{found['num_cropped']:,} cropped"] if found["num_cropped"] else []
    parts += [f"{found['num_set_aside']:,} left out"] if found["num_set_aside"] else []
    steps = max(1, -(-round(samples) // found["batch"]))
    devices = f" on {known.num_ranks} {'GPUs' if known.has_gpus else 'processes'}" if known.num_ranks > 1 else ""
    parts.append(f"{samples:,.0f} samples an epoch, in {counted(steps, 'step')} of {found['batch']}{devices}")
    return "; ".join(parts) + "."


def _counts(figure: str, title: str, found: Mapping[str, Any], note: str, marks: Sequence[Mark] = ()) -> Chart:
    counts = found[figure]
    shown = dict(list(counts.items())[:MOST_BARS])
    bars = [Bar(label, count, f"{count:,}") for label, count in shown.items()]
    more = f"and {counted(len(counts) - len(bars), 'more', 'more')}" if len(counts) > len(bars) else ""
    return Chart(figure, title, bars, note, marks, more)


def _buckets(known: KnownFigures) -> Chart:
    found = known.statistics
    batch, fills = found["batch"], found["buckets"]
    bars = [
        Bar(
            one["name"],
            one["samples"],
            f"{one['samples']:g} = {one['whole_steps']} x {batch} + {one['rest']:g}",
            one["rest"],
        )
        for one in fills[:MOST_BARS]
    ]
    left = f"{found['mixed_share']:.0%} are left over, in the second color: they train in slower steps of mixed shapes."
    note = f"Samples of an epoch in steps of {batch}: {left if found['mixed_share'] else 'none is left over.'}"
    more = f"and {len(fills) - len(bars):,} more" if len(fills) > len(bars) else ""
    return Chart("buckets", "Buckets", bars, note, (), more)


def _sides(known: KnownFigures) -> Chart:
    marks = _marks(known.statistics["sides"], SIDES, {one: f"training resolution {one}" for one in known.resolutions})
    return _counts("sides", "Shorter side", known.statistics, "In pixels, of the image as it is cropped.", marks)


def _lengths(known: KnownFigures) -> Chart:
    """Of captions, in tokens; in words as long as no tokens are counted."""
    found = known.statistics
    if not found["tokens"]:
        note = "" if known.reading else "Tokens are counted once the base model is on this machine."
        return _counts("words", "Words of captions", found, note)
    limit = known.token_limit
    marks = _marks(found["tokens"], token_starts(limit), {limit + 1: f"the base model reads {limit}"} if limit else {})
    return _counts("tokens", "Tokens of captions", found, "What is beyond the limit has no effect.", marks)


def _marks(counts: Mapping[str, int], starts: Sequence[int], values: Mapping[int, str]) -> list[Mark]:
    """Where values lie among the drawn ranges: above the range that each of them is in."""
    labels, every = list(counts), range_labels(starts)
    if not labels:
        return []
    first = every.index(labels[0])
    places = {value: math.floor(place_in(value, starts)) - first for value in values}
    return [Mark(min(max(places[value], 0), len(labels)), text) for value, text in values.items()]


def _single_tags(found: Mapping[str, Any]) -> Chart:
    tags, count = found["single_tags"], found["num_single_tags"]
    bars = [Bar(tag, 1, "1") for tag in tags[:MOST_BARS]]
    more = f"and {count - len(bars):,} more" if count > len(bars) else ""
    note = f"{counted(count, 'tag')}: misspelled, or too rare to be learned."
    return Chart("single_tags", "Tags of one image only", bars, note, (), more)
