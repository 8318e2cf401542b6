"""The dataset check: finds what is wrong or unusual about a run's dataset, without torch.

The part about captions is in caption_health.py.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from modules.config.batch_size import global_batch
from modules.config.clips import clip_rule
from modules.config.counted import counted
from modules.config.methods import facts_of
from modules.config.validation import find_problems
from modules.data.buckets import are_enlarged, crop_box
from modules.data.caption_health import caption_findings
from modules.data.concepts import captions, scan
from modules.data.conditions import conditions_of
from modules.data.conditions.pairs import family_of_run
from modules.data.decode_check import MOST_DECODED, Decode, decoded_samples, find_unusable, undecodable
from modules.data.decoding import check_unusable
from modules.data.drawn_images import draws_images
from modules.data.epoch_plan import count_samples, few_samples_warning
from modules.data.errors import DataError, ImageError
from modules.data.FileHashes import hash_of
from modules.data.Finding import NUM_LISTED, Finding, Level, finding_of
from modules.data.folder_walk import Outputs
from modules.data.images import color_conversion
from modules.data.ImageSettings import FILE_NAME
from modules.data.prepare import prepare_data
from modules.data.unread_files import FOLDERS, LEFT_OUT, VIDEOS, described
from modules.data.videos import VideoTraits, files_of, read_traits
from modules.families.registry import FAMILIES

if TYPE_CHECKING:
    from modules.config.DataConfig import DataConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.data.buckets import Buckets
    from modules.data.color_profiles import ColorState
    from modules.data.Dataset import Dataset

HUGE_PIXELS = 89_478_485  # where Pillow begins to warn; it refuses twice as many
NUM_READERS = 8


@dataclass(frozen=True)
class Health:
    """num_pictures: images that would be trained, 0 if the check ended before they were counted. findings: errors
    first. dataset, buckets: what would be trained, without the images that can't be used; None without any."""

    num_pictures: int
    findings: list[Finding]
    dataset: Dataset | None = field(default=None, repr=False)
    buckets: Buckets | None = field(default=None, repr=False)

    @property
    def can_train(self) -> bool:
        return not any(finding.level == "error" for finding in self.findings)


def check_health(
    config: TrainConfig, num_ranks: int = 1, most_decoded: int | None = MOST_DECODED, decode: Decode = undecodable
) -> Health:
    """Checks everything that `config` would train on.

    most_decoded: how many images are decoded, which finds damage after the header but takes as long as reading their
    files; None for all. decode: how, for a caller that looks at their pixels, too.
    """
    paths = ("concepts", "data")
    problems = [problem for problem in find_problems(config) if problem.path.partition(".")[0] in paths]
    findings = [Finding("setting", "error" if p.blocking else "warning", p.message) for p in problems]
    num_pictures, usable = 0, None
    if not any(problem.blocking for problem in problems) and not draws_images(config):
        try:
            dataset, buckets = prepare_data(config, FAMILIES[config.family])
            samples = decoded_samples(dataset, most_decoded)
            unusable = find_unusable(dataset, samples, decode)
            num_pictures = dataset.num_images - len(dataset.images_of(unusable))
            usable = _usable(dataset, buckets, unusable) if unusable else (dataset, buckets)
            findings += _findings(config, dataset, num_ranks, unusable, *usable)
            if len(samples) < dataset.num_images:
                findings.append(_partly_decoded(len(samples), dataset.num_images))
        except DataError as error:
            errors = _errors_of_concepts(config) or [str(error)]
            findings += [Finding("data", "error", text) for text in errors]
    order: list[Level] = ["error", "warning", "note"]
    findings = sorted(findings, key=lambda finding: order.index(finding.level))
    return Health(num_pictures, findings, *(usable if usable and num_pictures else ()))


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
    config: TrainConfig, found: Dataset, num_ranks: int, unusable: dict[int, str], dataset: Dataset, buckets: Buckets
) -> Iterator[Finding]:
    """unusable: those of the samples of `found` that are left out, with the reason. dataset, buckets: the rest."""
    family = family_of_run(FAMILIES[config.family], config)
    conditions = conditions_of(family) if facts_of(config).uses_denoiser else []
    yield from _unreadable(found, unusable, config.data.max_unreadable_share)
    if found.set_aside:
        one, several = f"image is left out by {FILE_NAME}", f"images are left out by {FILE_NAME}"
        yield finding_of("set_aside", "note", one, several, found.set_aside)
    for run, count in found.run_images.items():
        message = f"{counted(count, 'image')} of the run folder {run} will be left out."
        yield Finding("run_images", "note", message, count)
    for kind, paths in found.unread.items():
        level: Level = "note" if kind in (VIDEOS, FOLDERS) else "warning"
        yield Finding("unread", level, described(kind, paths, LEFT_OUT) + ".", len(paths), list(paths[:NUM_LISTED]))
    yield from _videos(found, unusable)
    for condition in conditions:
        yield from condition.findings(found, unusable)
    if not len(dataset):
        return  # of which there is an error already
    yield from _color_profiles(dataset)
    yield from _duplicates(dataset)
    yield from _shapes(dataset, buckets, config.data)
    yield from _huge(dataset)
    batch = global_batch(config, num_ranks)
    yield from _small_buckets(dataset, buckets, batch)
    samples = count_samples(len(dataset), dataset.repeats, concept_index=dataset.concept_index)
    if text := few_samples_warning(samples, batch):
        yield Finding("few_samples", "warning", text)
    if facts_of(config).uses_captions:
        yield from caption_findings(dataset, config)


def _usable(dataset: Dataset, buckets: Buckets, unusable: Collection[int]) -> tuple[Dataset, Buckets]:
    """Without the images that samples in `unusable` are views of."""
    first = dataset.first_views
    rows = np.flatnonzero(~np.isin(first, dataset.images_of(unusable)))
    kept = replace(dataset, views=None).take(rows)
    if views := dataset.views:
        new_first = np.searchsorted(rows, first[rows])
        kept = replace(kept, views=replace(views, first=new_first, variant=views.variant[rows]))
    return kept, replace(buckets, index=buckets.index[rows])


def _partly_decoded(num_decoded: int, num_images: int) -> Finding:
    message = (
        f"{num_decoded:,} of {counted(num_images, 'image')} were decoded, from all over the dataset; damage and what "
        "only pixels show is looked for in the others if every image is fully decoded."
    )
    return Finding("partly_decoded", "note", message)


def _unreadable(dataset: Dataset, unusable: dict[int, str], max_share: float) -> Iterator[Finding]:
    reasons = dict(dataset.unreadable) | {dataset.paths[sample]: reason for sample, reason in unusable.items()}
    if reasons:
        one, several = "image can't be read and is left out", "images can't be read and are left out"
        yield finding_of("unreadable", "warning", one, several, reasons, f" ({next(iter(reasons.values()))})")
    if dataset.stills:
        stills = dict(dataset.stills)
        one, several = "image is left out", "images are left out"
        yield finding_of("still", "note", one, several, stills, f" ({next(iter(stills.values()))})")
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
        one = "video has a variable frame rate, and its frames are chosen by time"
        several = "videos have a variable frame rate, and their frames are chosen by time"
        yield finding_of("variable_rate", "note", one, several, variable)
    sideways = [path for path, found in traits.items() if found and found.is_sideways]
    if sideways:
        one, several = "video is stored sideways and trained upright", "videos are stored sideways and trained upright"
        yield finding_of("sideways", "note", one, several, sideways)
    hdr = [path for path, found in traits.items() if found and found.is_hdr]
    if hdr:
        one, several = "HDR video is converted to SDR", "HDR videos are converted to SDR"
        yield finding_of("hdr", "note", one, several, hdr)


def _color_profiles(dataset: Dataset) -> Iterator[Finding]:
    """Reports images and what belongs to them with color profiles other than those of sRGB."""
    images = [path for path in dict.fromkeys(dataset.paths) if path not in dataset.videos]
    paths = [*images, *sorted(set(dataset.files()).difference(images))]
    with ThreadPoolExecutor(NUM_READERS) as readers:
        states = list(zip(paths, readers.map(_conversion_or_none, paths), strict=True))
    if unusable := [path for path, state in states if state == "unusable"]:
        one = "image has a color profile that is damaged or not made for it, and counts as sRGB"
        several = "images have color profiles that are damaged or not made for them, and count as sRGB"
        yield finding_of("unusable_profile", "warning", one, several, unusable)
    if converted := [path for path, state in states if state == "converted"]:
        one = "image has a color profile other than sRGB and is converted"
        several = "images have color profiles other than sRGB and are converted"
        yield finding_of("color_profile", "note", one, several, converted)


def _conversion_or_none(path: str) -> ColorState | None:
    try:
        return color_conversion(path)
    except ImageError:  # removed since it was found
        return None


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
        size = _bytes_or_none(path)
        if size is not None:
            alike[size, int(dataset.widths[sample]), int(dataset.heights[sample])].append(path)
    candidates = sorted({path for paths in alike.values() if len(paths) > 1 for path in paths})
    by_content: dict[str, list[str]] = defaultdict(list)
    with ThreadPoolExecutor(NUM_READERS) as readers:
        for path, digest in zip(candidates, readers.map(_hash_or_none, candidates), strict=True):
            if digest is not None:
                by_content[digest].append(path)
    copies = [path for paths in by_content.values() for path in paths[1:]]
    if copies:
        one = "image is a copy of another one, which is trained more often unless you remove the copy"
        several = "images are copies of others, which are trained more often unless you remove the copies"
        yield finding_of("duplicate", "note", one, several, copies)


def _bytes_or_none(path: str) -> int | None:
    try:
        return sum(map(os.path.getsize, files_of(path)))
    except (OSError, ImageError):  # removed since the images were found
        return None


def _hash_or_none(path: str) -> str | None:
    try:
        return hash_of(files_of(path))
    except (OSError, ImageError):
        return None


def _shapes(dataset: Dataset, buckets: Buckets, data: DataConfig) -> Iterator[Finding]:
    enlarged = are_enlarged(buckets, dataset.widths, dataset.heights)
    if enlarged.any():
        paths = dict.fromkeys(dataset.paths[sample] for sample in np.flatnonzero(enlarged))
        one = "image is smaller than the resolution and is upscaled"
        yield finding_of("small", "warning", one, "images are smaller than the resolution and are upscaled", paths)
    ratio = dataset.widths / dataset.heights
    if data.bucketing:
        limit, allowed = data.max_aspect, f"data.max_aspect {data.max_aspect:g} allows"
    else:
        width, height = data.shape
        ratio, limit, allowed = ratio * height / width, 1.0, f"the training size of {width} x {height} is"
    # 1.5 times the limit: some cropping to the nearest shape is normal and not worth reporting
    long = np.maximum(ratio, 1 / ratio) > 1.5 * limit
    if long.any():
        paths = dict.fromkeys(dataset.paths[sample] for sample in np.flatnonzero(long))
        kept = _kept_share(dataset, buckets, int(np.flatnonzero(long)[0]))
        one = f"image is much longer than {allowed} and is cropped"
        several = f"images are much longer than {allowed} and are cropped"
        yield finding_of("elongated", "warning", one, several, paths, f" ({kept:.0%} is kept)")


def _huge(dataset: Dataset) -> Iterator[Finding]:
    """Reports images so large that decoding them takes long and much memory."""
    limit = HUGE_PIXELS
    huge = dataset.widths.astype(np.int64) * dataset.heights > limit
    if huge.any():
        paths = dict.fromkeys(dataset.paths[sample] for sample in np.flatnonzero(huge))
        one = f"image has more than {limit / 1e6:.0f} megapixels, which take long to decode"
        several = f"images have more than {limit / 1e6:.0f} megapixels, which take long to decode"
        yield finding_of("huge", "note", one, several, paths)


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
        one = f"shape has fewer than the {batch} samples of a step and trains in slower steps of mixed shapes"
        several = f"shapes have fewer than the {batch} samples of a step and train in slower steps of mixed shapes"
        named = f"{', '.join(few[:10])}{', ...' if len(few) > 10 else ''}"
        yield Finding("small_bucket", "note", f"{counted(len(few), one, several)}: {named}.", len(few))
