"""What a run's captions leave out: images without a caption, and caption files and tables that are not read.

The dataset check, the dry run and the start of a run say it alike.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from modules.data.caption_tables import unread_tables
from modules.data.captions import caption_extension, caption_paths, has_surroundings
from modules.data.Finding import Finding, finding_of

if TYPE_CHECKING:
    from modules.data.Dataset import Dataset


def caption_remarks(dataset: Dataset, empty: Collection[str]) -> Iterator[Finding]:
    """Yields warnings. empty: the images whose caption is empty, as from `captions`."""
    if missing := dataset.missing_captions:
        trained = _trained_without(dataset, missing)
        one, several = f"image has no caption {trained}", f"images have no caption {trained}"
        yield finding_of("missing_caption", "warning", one, several, missing)
    if blank := [path for path in dict.fromkeys(dataset.paths) if path in empty]:
        trained = _trained_without(dataset, blank)
        one, several = f"image has an empty caption {trained}", f"images have an empty caption {trained}"
        yield finding_of("empty_caption", "warning", one, several, blank)
    yield from _unread_files(dataset)
    yield from _unread_tables(dataset)


def _trained_without(dataset: Dataset, paths: Collection[str]) -> str:
    """How images without a caption are trained."""
    wanted = set(paths)
    images = zip(dataset.paths, dataset.concept_index.tolist(), strict=True)
    surrounded = {has_surroundings(dataset.concepts[number]) for path, number in images if path in wanted}
    if surrounded == {True}:
        return "(trained with caption_prefix and caption_suffix alone)"
    return "(trained without one)" if surrounded == {False} else "(trained without one, or with its prefix and suffix)"


def _unread_files(dataset: Dataset) -> Iterator[Finding]:
    """Reports caption files beside images that are not read."""
    images = dict.fromkeys(zip(dataset.concept_index.tolist(), dataset.paths, strict=True))
    unread: dict[tuple[int, str], list[str]] = defaultdict(list)
    for number, path in images:
        if file := dataset.unread_captions.get((number, path)):
            unread[number, os.path.splitext(file)[1]].append(file)
    for (number, extension), files in unread.items():
        own = caption_extension(dataset.concepts[number])
        if extension.lower() == own.lower():
            one = f"image has two caption files, of which the one in {extension} is not read: keep one of them"
            several = f"images have two caption files, of which those in {extension} are not read: keep one of each"
            yield finding_of("two_captions", "warning", one, several, files)
            continue
        remedy = f"set concepts.{number}.caption_extension to {extension}, or rename"
        one = f"image has a {extension} file but no {own} file, which alone is read: {remedy} the file"
        several = f"images have a {extension} file but no {own} file, which alone is read: {remedy} the files"
        yield finding_of("other_extension", "warning", one, several, files)


def _unread_tables(dataset: Dataset) -> Iterator[Finding]:
    """Reports caption tables in the concepts' folders that are not read."""
    for number in dict.fromkeys(dataset.concept_index.tolist()):
        concept = dataset.concepts[number]
        if concept.captions not in ("txt", "table") or not (names := unread_tables(concept)):
            continue
        there, paths = " and ".join(names), [os.path.join(concept.path, name) for name in names]
        if concept.captions == "table":
            text = f"concepts.{number}.caption_table is empty, so {there} in {concept.path} is not read: "
            text += "name the table to read in it, or join them."
            yield Finding("unread_table", "warning", text, len(names), paths)
        elif not _has_caption_file(dataset, number):
            own = caption_extension(concept)
            text = f"concepts.{number}: no image has a {own} file, but {concept.path} has {there}"
            text += f": set concepts.{number}.captions to table to train with it."
            yield Finding("unread_table", "warning", text, len(names), paths)


def _has_caption_file(dataset: Dataset, number: int) -> bool:
    """Whether an image of a concept has one."""
    concept = dataset.concepts[number]
    images = (path for path, own in zip(dataset.paths, dataset.concept_index, strict=True) if own == number)
    return any(os.path.lexists(path) for image in images for path in caption_paths(image, concept))
