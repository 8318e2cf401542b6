"""The part of the dataset check about captions: what is wrong or unusual about them, without torch."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from modules.config.counted import counted
from modules.data.caption_remarks import caption_remarks
from modules.data.caption_tables import read_table
from modules.data.captions import (
    caption_extension,
    caption_paths,
    check_placeholders,
    describe_unreadable,
    own_captions,
    path_in_concept,
)
from modules.data.clips import CLIP, clip_of
from modules.data.concepts import captions, read_tables
from modules.data.errors import CaptionError, DataError
from modules.data.Finding import NUM_LISTED, Finding, finding_of
from modules.data.folder_walk import Outputs, walk
from modules.data.image_formats import EXTENSIONS
from modules.data.timed_captions import caption_parts, is_about
from modules.data.videos import EXTENSIONS as VIDEO_EXTENSIONS
from modules.families.registry import FAMILIES

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.data.Dataset import Dataset

MANY_WORDS = 60  # about 77 tokens, where CLIP truncates


def caption_findings(dataset: Dataset, config: TrainConfig) -> Iterator[Finding]:
    unreadable: dict[str, CaptionError] = {}
    empty: set[str] = set()
    options = captions(dataset, unreadable, empty)
    if unreadable:
        message = describe_unreadable(list(unreadable.values()))
        yield Finding("unreadable_caption", "error", message, len(unreadable), list(unreadable)[:NUM_LISTED])
    else:
        try:
            check_placeholders(config, (text for several in options for text in several))
        except DataError as error:
            yield Finding("placeholder", "error", str(error))
    images = np.flatnonzero(dataset.num_views).tolist()
    yield from caption_remarks(dataset, empty)
    if escaped := [dataset.paths[sample] for sample in images if any(map(_has_escapes, options[sample]))]:
        yield from _escaped_brackets(escaped, config)
    family = FAMILIES[config.family].with_text_chunks(config.model.text_chunks)
    most = MANY_WORDS * family.text.chunks
    long = [dataset.paths[sample] for sample in images if any(len(text.split()) > most for text in options[sample])]
    if long:
        one = f"image has a caption of more than {most} words, which CLIP may truncate"
        several = f"images have captions of more than {most} words, which CLIP may truncate"
        yield finding_of("long_caption", "note", one, several, long)
    if dataset.column(CLIP):
        yield from _timed_captions(dataset, options, unreadable)
    orphaned = sorted(_captions_without_image(dataset, Outputs.of(config)))
    if orphaned:
        yield finding_of("lonely_caption", "warning", "caption has no image", "captions have no image", orphaned)


def _has_escapes(caption: str) -> bool:
    return r"\(" in caption or r"\)" in caption


def _escaped_brackets(paths: Sequence[str], config: TrainConfig) -> Iterator[Finding]:
    """Reports brackets that taggers have written for programs that weight words by brackets."""
    family = FAMILIES[config.family]
    if family.text.takes_chunks and config.model.word_weights:
        return
    remedy = " or turn on model.word_weights" if family.text.takes_chunks else ""
    one = rf"image has a caption with \( or \), whose backslash is trained: remove it{remedy}"
    several = rf"images have captions with \( or \), whose backslashes are trained: remove them{remedy}"
    yield finding_of("escaped_brackets", "note", one, several, paths)


def _timed_captions(
    dataset: Dataset, options: Sequence[tuple[str, ...]], unreadable: Collection[str]
) -> Iterator[Finding]:
    """Reports captions of parts of videos that are those of no clip, and clips for which only other parts have one.

    options, unreadable: as from `captions`.
    """
    clips: dict[tuple[int, str], list[int]] = defaultdict(list)
    for sample in np.flatnonzero(dataset.num_views).tolist():
        if clip_of(dataset, sample) and dataset.paths[sample] not in unreadable:
            clips[int(dataset.concept_index[sample]), dataset.paths[sample]].append(sample)
    tables = read_tables(dataset.concepts)
    unused, without = [], []
    for (number, path), samples in clips.items():
        own = own_captions(path, dataset.concepts[number], tables.get(number)) or ()
        timed = [part for part in caption_parts(own) if part.span]
        spans = {sample: clip.span for sample in samples if (clip := clip_of(dataset, sample))}
        unused += [(part.span, path) for part in timed if not any(is_about(part, span) for span in spans.values())]
        without += [(span, path) for sample, span in spans.items() if timed and options[sample] == ("",)]
    for kind, one, several, found in (
        (
            "unused_caption",
            "timed caption covers no clip",
            "timed captions cover no clip",
            unused,
        ),
        (
            "clip_without_caption",
            "clip is outside of the times in its video's captions",
            "clips are outside of the times in their videos' captions",
            without,
        ),
    ):
        if found:
            span, path = found[0]
            paths = list(dict.fromkeys(path for _, path in found))
            text = f"{counted(len(found), one, several)}, such as {span} of {path}."
            yield Finding(kind, "warning", text, len(found), paths[:NUM_LISTED])


def _captions_without_image(dataset: Dataset, outputs: Outputs) -> Iterator[str]:
    for number, concept in enumerate(dataset.concepts):
        if not concept.enabled or concept.captions not in ("txt", "table"):
            continue
        root = os.path.expanduser(concept.path)
        walked = walk(root, concept.include_subfolders, [], outputs)
        names = {below + name for below, files, _, run, _ in walked if not run for name in files}
        extensions = EXTENSIONS | VIDEO_EXTENSIONS if dataset.column(CLIP) else EXTENSIONS
        images = {name for name in names if os.path.splitext(name)[1].lower() in extensions}
        folders = (path for path, info in dataset.videos.items() if info.folder_fps is not None)
        images.update(path_in_concept(path, concept) for path in (*folders, *dataset.set_aside))
        if concept.captions == "table":
            yield from (name for name in read_table(concept, f"concepts.{number}") if name not in images)
            continue
        wanted = {path for name in images for path in caption_paths(name, concept)}
        ending = caption_extension(concept).lower()
        yield from (os.path.join(root, name) for name in names - wanted if name.lower().endswith(ending))
