"""The dataset check: finds what is wrong or unusual about the images and captions of a run, without torch."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from modules.config.batch_size import global_batch
from modules.config.clips import clip_rule
from modules.config.counted import counted
from modules.config.methods import facts_of
from modules.config.validation import find_problems
from modules.data.buckets import crop_box
from modules.data.caption_tables import read_table
from modules.data.captions import (
    caption_extension,
    caption_path,
    check_placeholders,
    describe_unreadable,
    own_captions,
    path_in_concept,
)
from modules.data.concepts import captions, read_tables, scan
from modules.data.decoding import check_unusable, find_undecodable
from modules.data.epoch_plan import count_samples, few_samples_warning
from modules.data.errors import CaptionError, DataError, ImageError
from modules.data.FileHashes import hash_of
from modules.data.folder_walk import Outputs, walk
from modules.data.images import EXTENSIONS
from modules.data.layers import add_up
from modules.data.prepare import prepare_data
from modules.data.timed_captions import caption_parts, is_about
from modules.data.videos import EXTENSIONS as VIDEO_EXTENSIONS
from modules.data.videos import VideoTraits, files_of, read_traits
from modules.families.registry import FAMILIES

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.data.buckets import Buckets
    from modules.data.concepts import Dataset

MANY_WORDS = 60  # about 77 tokens, where CLIP truncates
ENLARGED = 1.1  # images that are upscaled by more than this are reported
NUM_READERS = 8
NUM_LISTED = 1000

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """All findings of one kind.

    kind: an identifier for programs. level: "error" if training would fail. message: one sentence.
    count: the number of affected items. paths: the first NUM_LISTED affected files.
    """

    kind: str
    level: Level
    message: str
    count: int = 1
    paths: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Health:
    """num_pictures: readable images, 0 if the check failed before counting them. findings: errors first."""

    num_pictures: int
    findings: list[Finding]

    @property
    def can_train(self) -> bool:
        return not any(finding.level == "error" for finding in self.findings)


def check_health(config: TrainConfig, num_ranks: int = 1, decode: bool = False) -> Health:
    """Checks everything that `config` would train on.

    decode: also decode every image, which finds damage after the header but takes as long as reading all files.
    """
    paths = ("concepts", "data")
    problems = [problem for problem in find_problems(config) if problem.path.partition(".")[0] in paths]
    findings = [Finding("setting", "error" if p.blocking else "warning", p.message) for p in problems]
    num_pictures = 0
    if not any(problem.blocking for problem in problems):
        try:
            dataset, buckets = prepare_data(config, FAMILIES[config.family])
            num_pictures = dataset.num_images
            findings += _findings(config, dataset, buckets, num_ranks, decode)
        except DataError as error:
            errors = _errors_of_concepts(config) or [str(error)]
            findings += [Finding("data", "error", text) for text in errors]
    order: list[Level] = ["error", "warning", "note"]
    return Health(num_pictures, sorted(findings, key=lambda finding: order.index(finding.level)))


def _errors_of_concepts(config: TrainConfig) -> list[str]:
    """The error of each concept, checked separately so that the first error does not hide the others."""
    errors = []
    for concept in config.concepts:
        alone = [replace(other, enabled=other is concept) for other in config.concepts]
        try:
            if concept.enabled:
                captions(scan(alone, outputs=Outputs.of(config), videos=clip_rule(config) is not None))
        except DataError as error:
            errors.append(str(error))
    return errors


def _findings(
    config: TrainConfig, dataset: Dataset, buckets: Buckets, num_ranks: int, decode: bool
) -> Iterator[Finding]:
    unusable = find_undecodable(dataset, buckets) if decode else {}
    yield from _unreadable(dataset, unusable, config.data.max_unreadable_share)
    for run, count in dataset.run_images.items():
        message = f"{counted(count, 'image')} of the run folder {run} will be left out."
        yield Finding("run_images", "note", message, count)
    yield from _videos(dataset, unusable)
    yield from _layers(dataset, unusable)
    yield from _duplicates(dataset)
    yield from _shapes(dataset, buckets, config)
    batch = global_batch(config, num_ranks)
    yield from _small_buckets(dataset, buckets, batch)
    samples = count_samples(len(dataset), dataset.repeats, concept_index=dataset.concept_index)
    if text := few_samples_warning(samples, batch):
        yield Finding("few_samples", "warning", text)
    if facts_of(config).uses_captions:
        yield from _captions(dataset, config)


def _unreadable(dataset: Dataset, unusable: dict[int, str], max_share: float) -> Iterator[Finding]:
    reasons = dict(dataset.unreadable) | {dataset.paths[sample]: reason for sample, reason in unusable.items()}
    if reasons:
        path, reason = next(iter(reasons.items()))
        message = f"images can't be read and are left out, such as {path} ({reason})"
        yield _finding("unreadable", "warning", message, reasons)
    try:
        check_unusable(dataset, unusable, max_share)
    except DataError as error:
        yield Finding("unreadable_share", "error", str(error))


def _videos(dataset: Dataset, unusable: dict[int, str]) -> Iterator[Finding]:
    """Reports videos that other programs often train wrongly."""
    unreadable = {dataset.paths[sample] for sample in unusable}
    files = [path for path, info in dataset.videos.items() if info.folder_fps is None]
    paths = [path for path in files if path not in unreadable]
    with ThreadPoolExecutor(NUM_READERS) as readers:
        traits = dict(zip(paths, readers.map(_traits_or_none, paths), strict=True))
    variable = [path for path, found in traits.items() if found and found.is_variable]
    if variable:
        message = f"videos have a variable frame rate, such as {variable[0]}: their frames are chosen by time"
        yield _finding("variable_rate", "note", message, variable)
    sideways = [path for path, found in traits.items() if found and found.is_sideways]
    if sideways:
        message = f"videos are stored sideways, such as {sideways[0]}: they are trained upright"
        yield _finding("sideways", "note", message, sideways)


def _layers(dataset: Dataset, unusable: dict[int, str]) -> Iterator[Finding]:
    """Reports images that are not the sum of their layers, as if these were numbered from the top to the bottom."""
    if dataset.layers is None:
        return
    images = [sample for sample in np.flatnonzero(dataset.num_views).tolist() if sample not in unusable]
    with ThreadPoolExecutor(NUM_READERS) as readers:
        sums = readers.map(lambda sample: _adds_up(dataset, sample), images)
        others = [dataset.paths[sample] for sample, adds_up in zip(images, sums, strict=True) if not adds_up]
    if others:
        message = f"images are not what their layers add up to from the bottom, _0, to the top, such as {others[0]}"
        yield _finding("layers", "warning", message, others)


def _adds_up(dataset: Dataset, sample: int) -> bool:
    try:
        return add_up(dataset.paths[sample], dataset.layers_of(sample))
    except ImageError:  # damage behind the header, which decoding every image finds
        return True


def _traits_or_none(path: str) -> VideoTraits | None:
    try:
        return read_traits(path)
    except ImageError:  # damage behind the header, which decoding every image finds
        return None


def _duplicates(dataset: Dataset) -> Iterator[Finding]:
    """Reports identical image files. Only files of the same size and shape are compared."""
    alike: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for sample in np.flatnonzero(dataset.num_views).tolist():
        path = dataset.paths[sample]
        size = sum(map(os.path.getsize, files_of(path)))
        alike[size, int(dataset.widths[sample]), int(dataset.heights[sample])].append(path)
    candidates = sorted({path for paths in alike.values() if len(paths) > 1 for path in paths})
    by_content: dict[str, list[str]] = defaultdict(list)
    with ThreadPoolExecutor(NUM_READERS) as readers:
        for path, digest in zip(candidates, readers.map(lambda path: hash_of(files_of(path)), candidates), strict=True):
            by_content[digest].append(path)
    copies = [path for paths in by_content.values() for path in paths[1:]]
    if copies:
        message = f"images are copies of another one, such as {copies[0]}: remove them, or they are trained more often"
        yield _finding("duplicate", "note", message, copies)


def _shapes(dataset: Dataset, buckets: Buckets, config: TrainConfig) -> Iterator[Finding]:
    shapes = np.array(buckets.shapes)[buckets.index]
    enlarged = np.maximum(shapes[:, 0] / dataset.widths, shapes[:, 1] / dataset.heights) > ENLARGED
    if enlarged.any():
        paths = [dataset.paths[sample] for sample in np.flatnonzero(enlarged)]
        message = f"images are smaller than the resolution and are upscaled, such as {paths[0]}"
        yield _finding("small", "warning", message, dict.fromkeys(paths))
    ratio = dataset.widths / dataset.heights
    if config.data.bucketing:
        limit, allowed = config.data.max_aspect, f"data.max_aspect {config.data.max_aspect:g} allows"
    else:
        width, height = config.data.shape
        ratio, limit, allowed = ratio * height / width, 1.0, f"the training size of {width} x {height} is"
    # 1.5 times the limit: some cropping to the nearest shape is normal and not worth reporting
    long = np.maximum(ratio, 1 / ratio) > 1.5 * limit
    if long.any():
        paths = [dataset.paths[sample] for sample in np.flatnonzero(long)]
        kept = _kept_share(dataset, buckets, int(np.flatnonzero(long)[0]))
        message = f"images are much longer than {allowed} and are cropped, such as {paths[0]} ({kept:.0%} is kept)"
        yield _finding("elongated", "warning", message, dict.fromkeys(paths))


def _kept_share(dataset: Dataset, buckets: Buckets, sample: int) -> float:
    width, height = buckets.shapes[buckets.index[sample]]
    size, _ = crop_box(int(dataset.widths[sample]), int(dataset.heights[sample]), width, height)
    return width * height / (size[0] * size[1])


def _small_buckets(dataset: Dataset, buckets: Buckets, batch: int) -> Iterator[Finding]:
    """Reports shapes with fewer samples than an optimizer step."""
    expected = dataset.repeats[dataset.first_views] / np.maximum(dataset.num_views[dataset.first_views], 1)
    counts = np.bincount(buckets.index, expected, len(buckets.shapes))
    few = [
        name
        for name, count in zip(buckets.names, counts, strict=True)
        if batch > 1 and 0 < count < min(batch, counts.sum())
    ]
    if few:
        message = (
            f"shapes have fewer than the {batch} samples of a step and train in slower steps of mixed shapes: "
            f"{', '.join(few[:10])}{', ...' if len(few) > 10 else ''}"
        )
        yield Finding("small_bucket", "note", f"{len(few)} {message}.", len(few))


def _captions(dataset: Dataset, config: TrainConfig) -> Iterator[Finding]:
    unreadable: dict[str, CaptionError] = {}
    options = captions(dataset, unreadable)
    if unreadable:
        message = describe_unreadable(list(unreadable.values()))
        yield Finding("unreadable_caption", "error", message, len(unreadable), list(unreadable)[:NUM_LISTED])
    else:
        try:
            check_placeholders(config, (text for several in options for text in several))
        except DataError as error:
            yield Finding("placeholder", "error", str(error))
    images = np.flatnonzero(dataset.num_views).tolist()
    if dataset.missing_captions:
        without = [sample for sample in images if options[sample] == ("",)]
        files = dict.fromkeys((dataset.concept_index[sample], dataset.paths[sample]) for sample in without)
        empty = [path for _, path in files if path not in unreadable]
        without_caption = counted(dataset.missing_captions, "image has", "images have")
        message = f"{without_caption} no caption (trained without one), such as {empty[0]}."
        yield Finding("missing_caption", "warning", message, dataset.missing_captions, empty[:NUM_LISTED])
    family = FAMILIES[config.family].with_text_chunks(config.model.text_chunks)
    most = MANY_WORDS * family.text.chunks
    long = [dataset.paths[sample] for sample in images if any(len(text.split()) > most for text in options[sample])]
    if long:
        message = f"captions have more than {most} words and may be truncated by CLIP, such as that of {long[0]}"
        yield _finding("long_caption", "note", message, long)
    if dataset.clips:
        yield from _timed_captions(dataset, options, unreadable)
    orphaned = sorted(_captions_without_image(dataset, Outputs.of(config)))
    if orphaned:
        yield _finding("lonely_caption", "warning", f"captions have no image, such as {orphaned[0]}", orphaned)


def _timed_captions(
    dataset: Dataset, options: Sequence[tuple[str, ...]], unreadable: Collection[str]
) -> Iterator[Finding]:
    """Reports captions of parts of videos that are those of no clip, and clips for which only other parts have one.

    options, unreadable: as from `captions`.
    """
    clips: dict[tuple[int, str], list[int]] = defaultdict(list)
    for sample in np.flatnonzero(dataset.num_views).tolist():
        if dataset.clip_of(sample) and dataset.paths[sample] not in unreadable:
            clips[int(dataset.concept_index[sample]), dataset.paths[sample]].append(sample)
    tables = read_tables(dataset.concepts)
    unused, without = [], []
    for (number, path), samples in clips.items():
        own = own_captions(path, dataset.concepts[number], tables.get(number)) or ()
        timed = [part for part in caption_parts(own) if part.span]
        spans = {sample: clip.span for sample in samples if (clip := dataset.clip_of(sample))}
        unused += [(part.span, path) for part in timed if not any(is_about(part, span) for span in spans.values())]
        without += [(span, path) for sample, span in spans.items() if timed and options[sample] == ("",)]
    for kind, message, found in (
        ("unused_caption", "captions of parts of videos are those of no clip", unused),
        ("clip_without_caption", "clips are outside of the times in their video's captions", without),
    ):
        if found:
            span, path = found[0]
            paths = list(dict.fromkeys(path for _, path in found))
            text = f"{len(found)} {message}, such as {span} of {path}."
            yield Finding(kind, "warning", text, len(found), paths[:NUM_LISTED])


def _captions_without_image(dataset: Dataset, outputs: Outputs) -> Iterator[str]:
    for number, concept in enumerate(dataset.concepts):
        if not concept.enabled or concept.captions not in ("txt", "table"):
            continue
        root = os.path.expanduser(concept.path)
        walked = walk(root, concept.include_subfolders, [], outputs)
        names = {below + name for below, files, run in walked if not run for name in files}
        extensions = EXTENSIONS | VIDEO_EXTENSIONS if dataset.clips else EXTENSIONS
        images = {name for name in names if os.path.splitext(name)[1].lower() in extensions}
        folders = (path for path, info in dataset.videos.items() if info.folder_fps is not None)
        images.update(path_in_concept(path, concept) for path in folders)
        if concept.captions == "table":
            yield from (name for name in read_table(concept, f"concepts.{number}") if name not in images)
            continue
        wanted, ending = {caption_path(name, concept) for name in images}, caption_extension(concept)
        yield from (os.path.join(root, name) for name in names if name.endswith(ending) and name not in wanted)


def _finding(kind: str, level: Level, message: str, paths: Iterable[str]) -> Finding:
    """message: the sentence without the number of `paths`, which it starts with, and the full stop."""
    paths = list(paths)
    return Finding(kind, level, f"{len(paths)} {message}.", len(paths), paths[:NUM_LISTED])
