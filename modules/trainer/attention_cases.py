"""The attentions of a run, to be tried before its first step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modules.data.records import CachedRecords
from modules.distributed.attention_trial import AttentionCase

if TYPE_CHECKING:
    from modules.config.attentions import Attentions
    from modules.data.SampleSource import SampleSource

MOST_LENGTHS = 8
MOST_RECORDS = 16  # read to learn the lengths
LONGEST = 8192  # tokens: longer attentions would take seconds
TILE = 256  # a multiple of the tiles of all kernels, whose last one is special
USUAL_WIDTH = 64

Lengths = tuple[int, int]  # numbers of queries and keys


def attention_cases(source: SampleSource, config: Mapping[str, Any], patch_size: int) -> list[AttentionCase]:
    """Attentions of the lengths that the cached latents and texts give; none for methods that train on pixels.

    config: of the denoiser. patch_size: as in Family. Lengths beyond LONGEST are replaced by shorter ones that end in a
    tile as full, and only some are taken if there are many.
    """
    if not isinstance(source.pictures, CachedRecords):
        return []
    of_unet = config.get("block_out_channels")
    cells = [2**level for level in range(len(of_unet))] if of_unet else [patch_size]
    shapes = {tuple(record["latents"].shape[1:]) for record in _some_latents(source)}
    texts = {value.shape[-2] for record in _some_texts(source) for value in record.values() if value.dim() > 1}
    images = {
        math.prod((*shape[:-2], *(-(-side // cell) for side in shape[-2:]))) for shape in shapes for cell in cells
    }
    lengths = _evenly({_shortened(pair) for image in images for pair in _pairs(image, texts)}, MOST_LENGTHS)
    width = config.get("attention_head_dim")
    width = width if isinstance(width, int) and USUAL_WIDTH <= width <= 2 * USUAL_WIDTH else USUAL_WIDTH
    return [AttentionCase(*pair, width, masked) for pair in lengths for masked in (False, True)]


def in_all_widths(cases: Sequence[AttentionCase], attentions: Attentions | None) -> list[AttentionCase]:
    """The cases, and the first one for each width of heads that the published model has besides.

    Kernels of other packages may lack one of them on some GPUs; PyTorch's are written for all.
    """
    known = {case.width for case in cases}
    widths = {kind.width for kind in attentions.kinds} - known if attentions and cases else set()
    return [*cases, *(replace(cases[0], width=width) for width in sorted(widths))]


def _pairs(image: int, texts: Iterable[int]) -> Iterator[Lengths]:
    """Of an image by itself, joined with a text, and attending to a text."""
    yield image, image
    for text in texts:
        yield image + text, image + text
        yield image, text


def _shortened(pair: Lengths) -> Lengths:
    queries, keys = (min(length, LONGEST + length % TILE) for length in pair)
    return queries, keys


def _evenly(values: Iterable[Lengths], most: int) -> list[Lengths]:
    ordered = sorted(values)
    if len(ordered) <= most:
        return ordered
    return [ordered[round(number * (len(ordered) - 1) / (most - 1))] for number in range(most)]


def _some_latents(source: SampleSource) -> Iterator[Mapping[str, Any]]:
    """One record of each of some buckets."""
    assert isinstance(source.pictures, CachedRecords)
    of_bucket = {int(source.buckets.index[sample]): key for sample, key in source.pictures.keys.items()}
    for key in list(of_bucket.values())[:MOST_RECORDS]:
        if record := source.pictures.cache.get(key):
            yield record


def _some_texts(source: SampleSource) -> Iterator[Mapping[str, Any]]:
    for key in list(source.text.keys.values())[:MOST_RECORDS] if source.text else []:
        if record := source.text.cache.get(key):  # type: ignore[union-attr] # `if source.text` is above
            yield record
