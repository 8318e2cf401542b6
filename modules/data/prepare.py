"""Finds the images of a run and assigns their buckets, without decoding them and without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modules.config.clips import clip_rule
from modules.config.image_sizes import size_problems
from modules.config.methods import facts_of
from modules.data.buckets import Buckets, assign_buckets
from modules.data.clips import CLIP, with_clips
from modules.data.concepts import scan
from modules.data.conditions import conditions_of
from modules.data.conditions.pairs import family_of_run
from modules.data.Dataset import Dataset
from modules.data.drawn_images import drawn_dataset, draws_images
from modules.data.errors import DataError
from modules.data.folder_walk import Outputs
from modules.data.holdout import hold_out
from modules.data.image_views import with_views
from modules.data.masks import sees_mask_clips, uses_masks, with_masks

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.families.Family import Family


MAX_SAMPLES = 100_000_000  # of an epoch, whose plan takes about 50 bytes for each


def check_sizes(config: TrainConfig, family: Family) -> None:
    """Raises DataError for sizes of training or sample images that the family can't process."""
    for problem in size_problems(config, family.align, family.name):
        raise DataError.of(problem)


def prepare_data(config: TrainConfig, family: Family) -> tuple[Dataset, Buckets]:
    """Raises DataError for sizes that the family can't process and for concepts without images."""
    check_sizes(config, family)
    data = config.data
    rule = clip_rule(config)
    if draws_images(config):
        dataset = drawn_dataset(config)
    else:
        dataset = scan(config.concepts, outputs=Outputs.of(config), videos=rule is not None)
    if uses_masks(config):
        dataset = with_masks(dataset, sees_mask_clips(config))
    conditions = conditions_of(family_of_run(family, config)) if facts_of(config).uses_denoiser else []
    for condition in conditions:
        dataset = condition.find(dataset, config)
    dataset = with_clips(dataset, rule)
    for condition in conditions:
        dataset = condition.select(dataset, config)
    _check_epoch(dataset)
    dataset, resolution = with_views(hold_out(dataset, data.validation_share), data, config.seed)
    buckets = assign_buckets(
        dataset.widths,
        dataset.heights,
        resolution,
        data.bucket_step,
        data.max_aspect,
        data.bucketing,
        upscale=not data.no_upscale,
        max_side=data.max_side,
        fixed_shape=data.fixed_shape,
    )
    for condition in conditions:
        if (frames := condition.latent_frames(dataset)) is not None:
            return dataset, buckets.divided(frames, 1)
    passes = next(filter(None, (condition.passes(dataset) for condition in conditions)), [])
    at_once = next(filter(None, (condition.frames_in_pass(dataset) for condition in conditions)), [])
    return dataset, _with_frames(buckets, dataset, family.frames_per_token or family.frame_step, passes, at_once)


def _with_frames(
    buckets: Buckets,
    dataset: Dataset,
    frames_per_token: int | None,
    passes: Sequence[str],
    at_once: Sequence[int],
) -> Buckets:
    """The buckets divided by the number of frames.

    frames_per_token: of the family. passes: as of `Buckets.divided`. at_once: of each sample, where not all of its
    frames go through the denoiser at once; else [].
    """
    if (clips := dataset.column(CLIP)) is None:
        return buckets
    frames = at_once or [1 if clip is None else clip.num_frames for clip in clips]
    return buckets.divided(frames, frames_per_token or 1, passes)


def _check_epoch(dataset: Dataset) -> None:
    """Raises DataError if an epoch has more samples than can be planned."""
    repeats = dataset.repeats
    if repeats.sum() <= MAX_SAMPLES:
        return
    number = int(dataset.concept_index[int(repeats.argmax())])
    raise DataError.at(
        f"concepts.{number}.repeats",
        f"{dataset.concepts[number].repeats:g}: an epoch would have {repeats.sum():.3g} "
        f"samples, and at most {MAX_SAMPLES:g} can be planned; use less, and more epochs.",
    )
