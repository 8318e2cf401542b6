"""What is wrong or unusual about the pictures and captions of a run, for people to look at before they train.

Torch is not needed; nothing is decoded unless asked.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from modules.config.batch_size import global_batch
from modules.config.methods import facts_of
from modules.config.validation import find_problems
from modules.data.buckets import crop_box
from modules.data.caching import check_unusable, find_undecodable
from modules.data.caption_tables import read_table
from modules.data.captions import caption_path, check_placeholders, describe_unreadable
from modules.data.concepts import captions, scan
from modules.data.epoch_plan import count_samples, few_samples_warning
from modules.data.errors import CaptionError, DataError
from modules.data.folder_walk import Outputs, walk
from modules.data.images import EXTENSIONS
from modules.data.prepare import prepare_data
from modules.families.registry import FAMILIES

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.data.buckets import Buckets
    from modules.data.concepts import Dataset

MANY_WORDS = 60  # about 77 tokens of CLIP, which reads no further
ENLARGED = 1.1  # a picture that is enlarged by more than this is told of
NUM_READERS = 8
NUM_LISTED = 1000

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One kind of thing found.

    kind: a word for programs. level: "error" where training would fail. message: one sentence.
    count: of what the message tells. paths: of the first NUM_LISTED.
    """

    kind: str
    level: Level
    message: str
    count: int = 1
    paths: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Health:
    """num_pictures: that can be read, 0 where the check did not come so far. findings: the errors first."""

    num_pictures: int
    findings: list[Finding]

    @property
    def can_train(self) -> bool:
        return not any(finding.level == "error" for finding in self.findings)


def check_health(config: TrainConfig, num_ranks: int = 1, decode: bool = False) -> Health:
    """Looks at everything that `config` would train on.

    decode: also decode every picture, which finds those damaged behind their header and takes as long as reading all.
    """
    paths = ("concepts", "data")
    problems = [problem for problem in find_problems(config) if problem.path.partition(".")[0] in paths]
    findings = [Finding("setting", "error" if p.blocking else "warning", p.message) for p in problems]
    num_pictures = 0
    if not any(problem.blocking for problem in problems):
        try:
            dataset, buckets = prepare_data(config, FAMILIES[config.family])
            num_pictures = dataset.num_images
            findings += _look_at(config, dataset, buckets, num_ranks, decode)
        except DataError as error:
            errors = _errors_of_concepts(config) or [str(error)]
            findings += [Finding("data", "error", text) for text in errors]
    order: list[Level] = ["error", "warning", "note"]
    return Health(num_pictures, sorted(findings, key=lambda finding: order.index(finding.level)))


def _errors_of_concepts(config: TrainConfig) -> list[str]:
    """What is wrong with each concept, where the first mistake would hide the others."""
    errors = []
    for concept in config.concepts:
        alone = [replace(other, enabled=other is concept) for other in config.concepts]
        try:
            if concept.enabled:
                captions(scan(alone, outputs=Outputs.of(config)))
        except DataError as error:
            errors.append(str(error))
    return errors


def _look_at(
    config: TrainConfig, dataset: Dataset, buckets: Buckets, num_ranks: int, decode: bool
) -> Iterator[Finding]:
    unusable = find_undecodable(dataset, buckets) if decode else {}
    yield from _unreadable(dataset, unusable, config.data.max_unreadable_share)
    for run, count in dataset.run_images.items():
        yield Finding("run_images", "note", f"{count} images of the run folder {run} are left out.", count)
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
        message = f"pictures can't be read and are left out, such as {path} ({reason})"
        yield _finding("unreadable", "warning", message, reasons)
    try:
        check_unusable(dataset, unusable, max_share)
    except DataError as error:
        yield Finding("unreadable_share", "error", str(error))


def _duplicates(dataset: Dataset) -> Iterator[Finding]:
    """Pictures of equal bytes. Only files of one size and shape are read."""
    alike: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for sample in np.flatnonzero(dataset.num_views).tolist():
        path = dataset.paths[sample]
        alike[os.path.getsize(path), int(dataset.widths[sample]), int(dataset.heights[sample])].append(path)
    candidates = sorted({path for paths in alike.values() if len(paths) > 1 for path in paths})
    by_content: dict[str, list[str]] = defaultdict(list)
    with ThreadPoolExecutor(NUM_READERS) as readers:
        for path, digest in zip(candidates, readers.map(_digest, candidates), strict=True):
            by_content[digest].append(path)
    copies = [path for paths in by_content.values() for path in paths[1:]]
    if copies:
        message = f"pictures are copies of another one, such as {copies[0]}: remove them, or they count more"
        yield _finding("duplicate", "note", message, copies)


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


def _shapes(dataset: Dataset, buckets: Buckets, config: TrainConfig) -> Iterator[Finding]:
    shapes = np.array(buckets.shapes)[buckets.index]
    enlarged = np.maximum(shapes[:, 0] / dataset.widths, shapes[:, 1] / dataset.heights) > ENLARGED
    if enlarged.any():
        paths = [dataset.paths[sample] for sample in np.flatnonzero(enlarged)]
        message = f"pictures are smaller than the resolution and are enlarged, such as {paths[0]}"
        yield _finding("small", "warning", message, dict.fromkeys(paths))
    ratio = dataset.widths / dataset.heights
    limit = config.data.max_aspect if config.data.bucketing else 1.0
    # half as much again: what the nearest shape cuts off anyway is nothing to tell of
    long = np.maximum(ratio, 1 / ratio) > 1.5 * limit
    if long.any():
        paths = [dataset.paths[sample] for sample in np.flatnonzero(long)]
        kept = _kept_share(dataset, buckets, int(np.flatnonzero(long)[0]))
        message = (
            f"pictures are much longer than data.max_aspect {limit:g} allows and lose their ends, "
            f"such as {paths[0]} ({kept:.0%} is kept)"
        )
        yield _finding("elongated", "warning", message, dict.fromkeys(paths))


def _kept_share(dataset: Dataset, buckets: Buckets, sample: int) -> float:
    width, height = buckets.shapes[buckets.index[sample]]
    size, _ = crop_box(int(dataset.widths[sample]), int(dataset.heights[sample]), width, height)
    return width * height / (size[0] * size[1])


def _small_buckets(dataset: Dataset, buckets: Buckets, batch: int) -> Iterator[Finding]:
    """Shapes whose samples don't fill a step of their own."""
    expected = dataset.repeats[dataset.first_views] / np.maximum(dataset.num_views[dataset.first_views], 1)
    counts = np.bincount(buckets.index, expected, len(buckets.shapes))
    few = [
        f"{width}x{height}"
        for (width, height), count in zip(buckets.shapes, counts, strict=True)
        if batch > 1 and 0 < count < min(batch, counts.sum())
    ]
    if few:
        message = (
            f"shapes have less than a step's {batch} samples and train in steps of mixed shapes, which are slower: "
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
    pictures = np.flatnonzero(dataset.num_views).tolist()
    if dataset.missing_captions:
        without = [dataset.paths[sample] for sample in pictures if options[sample] == ("",)]
        empty = [path for path in without if path not in unreadable]
        message = f"{dataset.missing_captions} pictures have no caption and train without, such as {empty[0]}."
        yield Finding("missing_caption", "warning", message, dataset.missing_captions, empty[:NUM_LISTED])
    long = [
        dataset.paths[sample] for sample in pictures if any(len(text.split()) > MANY_WORDS for text in options[sample])
    ]
    if long:
        message = f"captions have more than {MANY_WORDS} words, whose end CLIP may not read, such as that of {long[0]}"
        yield _finding("long_caption", "note", message, long)
    lonely = sorted(_captions_without_image(dataset, Outputs.of(config)))
    if lonely:
        yield _finding("lonely_caption", "warning", f"captions have no picture, such as {lonely[0]}", lonely)


def _captions_without_image(dataset: Dataset, outputs: Outputs) -> Iterator[str]:
    for number, concept in enumerate(dataset.concepts):
        if not concept.enabled or concept.captions not in ("txt", "table"):
            continue
        root = os.path.expanduser(concept.path)
        walked = walk(root, concept.include_subfolders, [], outputs)
        names = {below + name for below, files, run in walked if not run for name in files}
        pictures = {name for name in names if os.path.splitext(name)[1].lower() in EXTENSIONS}
        if concept.captions == "table":
            yield from (name for name in read_table(concept, f"concepts.{number}") if name not in pictures)
            continue
        wanted = {caption_path(name) for name in pictures}
        yield from (os.path.join(root, name) for name in names if name.endswith(".txt") and name not in wanted)


def _finding(kind: str, level: Level, message: str, paths: Iterable[str]) -> Finding:
    """message: what follows the number of `paths`."""
    paths = list(paths)
    return Finding(kind, level, f"{len(paths)} {message}.", len(paths), paths[:NUM_LISTED])
