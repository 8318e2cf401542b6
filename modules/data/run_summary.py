"""Summarizes what a run would do, from its settings and file headers only: no torch, nothing decoded or written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from modules.config.batch_size import scientific
from modules.config.counted import counted
from modules.config.methods import facts_of, fixed_prompts
from modules.config.problems import warning
from modules.config.steps import count_steps, planned_steps
from modules.data.caption_remarks import caption_remarks
from modules.data.captions import check_placeholders
from modules.data.CaptionSource import CaptionSource
from modules.data.clips import clip_of, describe_clips, num_clips
from modules.data.compiled_sizes import compiled_sizes
from modules.data.concepts import captions
from modules.data.conditions import conditions_of
from modules.data.conditions.pairs import family_of_run
from modules.data.crops import CROP
from modules.data.drawn_images import draws_images
from modules.data.epoch_plan import count_samples, few_samples_warning
from modules.data.holdout import no_validation_warning
from modules.data.ImageSettings import FILE_NAME
from modules.data.masks import MASK, mask_of, needs_masks, unused_masks_warning
from modules.data.prepare import prepare_data
from modules.data.RunPlan import RunPlan
from modules.data.unread_files import FOLDERS, LEFT_OUT, described
from modules.families.registry import FAMILIES
from modules.machine.disk_estimate import run_disk_bytes, size_share
from modules.machine.memory_estimate import needed_bytes
from modules.machine.run_shape import counted_shape
from modules.machine.strategy import with_strategy
from modules.machine.system_memory import needed_in_ram
from modules.session.backups import state_to_resume
from modules.session.byte_sizes import spoken_bytes
from modules.session.RunFolder import RunFolder
from modules.session.RunSummary import GPU_MEMORY, MEMORY, SYSTEM_MEMORY, RunSummary
from modules.weights.hub_parts import with_parts_on_disk
from modules.weights.inspect import BaseInfo
from modules.weights.own_parts import own_parts
from modules.weights.stated_prediction import stated_prediction

if TYPE_CHECKING:
    from modules.config.problems import Problem
    from modules.config.TrainConfig import TrainConfig
    from modules.data.buckets import Buckets
    from modules.data.conditions.ConditionData import ConditionData
    from modules.data.Dataset import Dataset
    from modules.families.Family import Family
    from modules.machine.run_shape import Rate, RunShape

WARNING = "Warning"  # the label of what is no line of the summary

# Of compiled blocks on an H200 (docs/gpu.md): 25 to 32 s for each size; a step of SDXL takes 0.13 s less, one of FLUX.1
# 0.06 s.
SECONDS_PER_GRAPH, STEPS_PER_GRAPH = 30, 400


def summarize(
    config: TrainConfig, shape: RunShape, base: BaseInfo, warnings: Sequence[Problem] = (), resume: bool = False
) -> RunSummary:
    """What a run that trainer/checks.py has not refused would do: images, buckets, steps, batch, rates, memory and disk
    space.

    shape: of the run on this machine. base: what model.base is. warnings: those that are known already.
    resume: the run resumes the one in its folder, whose backup determines the batch and the learning rates' factor.
    Raises UserError for data that training would refuse.
    """
    family = family_of_run(FAMILIES[config.family], config)
    dataset, buckets = prepare_data(config, family)
    uses_captions = facts_of(config).uses_captions
    empty: set[str] = set()
    texts = captions(dataset, empty=empty) if uses_captions else []
    state = state_to_resume(RunFolder(config.workspace_dir)) if resume else None
    check_placeholders(config, chain.from_iterable(texts))
    num_texts = count_texts(config, dataset, texts) if uses_captions else None
    samples = count_samples(len(dataset), dataset.repeats, concept_index=dataset.concept_index)
    shape = counted_shape(shape, config, samples, state)
    lines = [
        ("Model", f"{config.model.base} ({base.detail})"),
        *_part_lines(config, family),
        *_prediction_lines(config, family, base),
        ("Method", facts_of(config).label),
        *(
            [("Images", f"none: {len(dataset)} samples an epoch are drawn by the model")]
            if draws_images(config)
            else _image_lines(config, dataset, buckets, conditions_of(family))
        ),
        *_caption_lines(num_texts),
        *_step_lines(config, shape, state),
        *_matmul_lines(config),
        *_compile_lines(config, family, dataset, buckets, shape),
        *_memory_lines(config, shape, base),
        *_disk_lines(disk_needs(config, family, base, dataset, buckets, num_texts)),
        *_warning_lines(config, dataset, empty),
    ]
    found = [warning(text) for label, text in lines if label == WARNING]
    return RunSummary(tuple(line for line in lines if line[0] != WARNING), (*warnings, *found))


def _part_lines(config: TrainConfig, family: Family) -> Iterator[tuple[str, str]]:
    """Which parts come from elsewhere, as far as they are on this machine: text encoders are told apart by content."""
    uses_all = facts_of(config).uses_denoiser
    parts = own_parts(family, with_parts_on_disk(config.model)).items()
    if texts := [f"{name} from {path}" for name, path in parts if uses_all or name == family.vae]:
        yield "Parts", ", ".join(texts)


def _prediction_lines(config: TrainConfig, family: Family, base: BaseInfo) -> Iterator[tuple[str, str]]:
    if facts_of(config).uses_denoiser and (text := stated_prediction(with_parts_on_disk(config.model), family, base)):
        yield "Predicts", text


def _image_lines(
    config: TrainConfig, dataset: Dataset, buckets: Buckets, conditions: Sequence[ConditionData]
) -> Iterator[tuple[str, str]]:
    num_images, num_missing = dataset.num_images - num_clips(dataset), len(dataset.missing_captions)
    missing = f", {num_missing} without a caption" if num_missing else ""
    masked = ""
    if num_images and dataset.column(MASK) and not needs_masks(config):  # else the condition describes its masks
        images = (image for image in dataset.images_of(range(len(dataset))) if clip_of(dataset, image) is None)
        masked = f", {sum(mask_of(dataset, image) is not None for image in images)} with a mask"
    yield "Images", f"{num_images}{missing}{masked}"
    if dataset.views is not None:
        yield "Variants", f"{len(dataset)} (resolutions and augmented variants of the images)"
    if dataset.held_out is not None:
        yield "Validation", f"{int(dataset.held_out.sum())} of the images are never trained on"
    if facts_of(config).uses_denoiser:
        yield from filter(None, (condition.describe(dataset) for condition in conditions))
    if text := describe_clips(dataset):
        yield "Clips", text
    if crops := dataset.column(CROP):
        num_cropped = sum(crops[image] is not None for image in dataset.images_of(range(len(dataset))))
        yield "Cropped", f"{counted(num_cropped, 'image')} by {FILE_NAME}"
    counts = np.bincount(buckets.index, minlength=len(buckets.shapes))
    shapes = (f"{name}: {count}" for name, count in zip(buckets.names, counts, strict=True))
    yield "Buckets", ", ".join(shapes)
    for path, reason in dataset.left_out:
        yield "Left out", f"{path} ({reason})"
    if dataset.set_aside:
        yield "Left out", f"{counted(len(dataset.set_aside), 'image')} by {FILE_NAME}"
    for run, count in dataset.run_images.items():
        yield "Left out", f"{counted(count, 'image')} of the run folder {run}"
    for kind, paths in dataset.unread.items():
        yield "Left out", described(kind, paths)


def _caption_lines(num_texts: int | None) -> Iterator[tuple[str, str]]:
    if num_texts is not None:
        yield "Captions", f"{num_texts} different texts are cached" if num_texts else "encoded in each step"


def count_texts(config: TrainConfig, dataset: Dataset, options: Sequence[tuple[str, ...]]) -> int:
    """The number of texts to cache: all variants of the captions of each sample, and the empty caption.

    Where text encoders see images of a sample, those of different samples count apart.

    0 if a text encoder trains, because captions are then encoded in each step.
    """
    if facts_of(config).trains_text(config):
        return 0
    variants, preserves = config.data.caption_variants, config.loss.output_preservation
    fixed = tuple(fixed_prompts(config).values())
    source = CaptionSource(dataset, options, config.seed, variants, preserves, fixed=fixed)
    if FAMILIES[config.family].text.sees_images:
        return len(source.texts_by_sample(with_empty=config.data.caption_dropout > 0))
    return len(source.all_texts())


def _step_lines(config: TrainConfig, shape: RunShape, state: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    """shape: with the samples counted. state: of the backup to resume from."""
    assert shape.num_samples is not None
    assert shape.steps is not None
    samples, total, devices = shape.num_samples, shape.steps, counted(shape.num_ranks, "device")
    per_epoch = count_steps(samples, shape.batch)
    all_steps = planned_steps(config.epochs, per_epoch, state)
    limit = "" if total == all_steps else f" of {all_steps:,}, limited by max_steps"
    epochs = counted(config.epochs, "epoch")
    yield "Steps", f"{total:,}{limit} ({epochs} of {counted(samples, 'sample')}, {counted(per_epoch, 'step')} each)"
    if state:
        left = max(0, total - state["step"])
        yield "Resume", f"from the backup of step {state['step']:,}, {counted(left, 'step')} left"
    rule = "as in the backup" if state else config.lr_scaling
    yield "Batch", f"{shape.local_batch:g} per device x {devices} x {shape.accumulation} accumulation = {shape.batch}"
    yield "Learning rate", "; ".join(_rate_text(rate, shape, rule) for rate in shape.rates)
    if shape.num_ranks > 1 and config.distributed_strategy == "auto":
        text = f"{shape.strategy.upper()} is expected, because {shape.strategy_reason}"
        yield "Strategy", f"{text}; the ranks decide by the memory of their devices"
    for text in step_warnings(config, samples, shape.batch, total):
        yield WARNING, text


def _matmul_lines(config: TrainConfig) -> Iterator[tuple[str, str]]:
    model = config.model
    if model.quantized_matmul == "on" and facts_of(config).uses_denoiser:
        size = model.quantized_matmul_size
        which = f"layers of at least {size:,} million weights" if size else "all quantized layers"
        rotated = ", with rotated inputs" if model.quantized_matmul_rotation else ""
        yield "8-bit matmul", f"{model.denoiser_quantization}, in {which}{rotated}"


def _compile_lines(
    config: TrainConfig, family: Family, dataset: Dataset, buckets: Buckets, shape: RunShape
) -> Iterator[tuple[str, str]]:
    """What compiling costs, and from how many steps on it pays."""
    if config.model.compile == "off" or not facts_of(config).uses_denoiser:
        return
    plan = RunPlan(dataset, buckets, (), config.seed, shape.batch)
    sizes = compiled_sizes(config.model, family, plan, buckets, shape.num_ranks, shape.accumulation)
    what = "one graph for all sizes" if sizes.all_sizes else "a graph for each"
    if sizes.num_sizes is not None:
        what = f"{counted(sizes.num_sizes, 'size')}, {what}" if sizes.num_sizes > 1 else "one size"
    count, each = sizes.num_graphs or 1, " for each length of the texts" if sizes.num_graphs is None else ""
    seconds, steps = count * SECONDS_PER_GRAPH, count * STEPS_PER_GRAPH
    cost = f"about {seconds} s{each} on an H200 if nothing is in the cache, which pays from about {steps:,} steps on"
    yield "torch.compile", f"{what}: {cost}"


def _rate_text(rate: Rate, shape: RunShape, rule: str) -> str:
    part = f"{rate.part} " if len(shape.rates) > 1 else ""
    scaled = f" -> {scientific(rate.after)} ({rule})" if rate.after != rate.before else ""
    return f"{part}{scientific(rate.before)}{scaled}"


def step_warnings(config: TrainConfig, samples: int, batch: int, total_steps: int) -> Iterator[str]:
    """Warnings about the steps of a run. samples: per epoch. batch: samples per step."""
    if text := few_samples_warning(samples, batch):
        yield text
    warmup = config.schedule.warmup
    ends_by_epochs = config.max_steps is None or total_steps < config.max_steps
    if 1 <= warmup >= total_steps and ends_by_epochs:  # validation checks max_steps
        yield (
            f"schedule.warmup {warmup:g} does not end within the run's {counted(total_steps, 'step')}: use fewer "
            "steps, or a fraction such as 0.1."
        )
    if config.ema.enabled and config.ema.start_after >= total_steps:
        yield (
            f"ema.start_after {config.ema.start_after}: the run has {counted(total_steps, 'step')}, so nothing is "
            "averaged; decrease it."
        )


def image_warnings(config: TrainConfig, dataset: Dataset) -> Iterator[str]:
    """Warnings about skipped images and missing masks."""
    for path, reason in dataset.left_out:
        yield f"{path} is left out: {reason}."
    if dataset.set_aside:
        yield f"{counted(len(dataset.set_aside), 'image is', 'images are')} left out, as {FILE_NAME} says."
    for run, count in dataset.run_images.items():
        yield f"{counted(count, 'image')} of the run folder {run} will be left out."
    for kind, paths in dataset.unread.items():
        if kind != FOLDERS:
            yield described(kind, paths, LEFT_OUT) + "."
    if text := unused_masks_warning(config, dataset):
        yield text
    if (masks := dataset.column(MASK)) and not needs_masks(config):
        without_mask = sum(masks[image] is None for image in dataset.images_of(range(len(dataset))))
        if without_mask:
            yield f"{counted(without_mask, 'image has', 'images have')} no mask (trained unmasked)."


def _memory_lines(config: TrainConfig, shape: RunShape, base: BaseInfo) -> Iterator[tuple[str, str]]:
    """What the run takes on this machine, by estimate."""
    config, size = with_strategy(config, shape), base.size_bytes or None
    needed = needed_bytes(config, shape.num_ranks, size)
    in_ram = needed_in_ram(config, shape.num_ranks, shape.ranks_per_node, size)
    if needed is None or in_ram is None:
        return
    if shape.gpus:
        where = "each GPU" if shape.ranks_per_node > 1 else "the GPU"
        yield GPU_MEMORY, f"about {spoken_bytes(needed)} on {where}, by estimate"
        yield SYSTEM_MEMORY, f"about {spoken_bytes(in_ram)}, by estimate"
    else:
        where = "each process" if shape.ranks_per_node > 1 else "the process"
        yield MEMORY, f"about {spoken_bytes(needed)} in {where}, by estimate"


def _disk_lines(needs: list[DiskNeed]) -> Iterator[tuple[str, str]]:
    for need in needs:
        size, free = spoken_bytes(need.needed_bytes), spoken_bytes(need.free_bytes)
        yield "Disk", f"{need.setting} {need.folder}: about {size} needed, {free} free"
        if need.warning:
            yield WARNING, need.warning


def _warning_lines(config: TrainConfig, dataset: Dataset, empty: set[str]) -> Iterator[tuple[str, str]]:
    num_held_out = 0 if dataset.held_out is None else int(dataset.held_out.sum())
    for text in (unused_masks_warning(config, dataset), no_validation_warning(config, num_held_out)):
        if text:
            yield WARNING, text
    if facts_of(config).uses_captions:
        yield from ((WARNING, finding.message) for finding in caption_remarks(dataset, empty))


def disk_needs(
    config: TrainConfig,
    family: Family,
    base: BaseInfo,
    dataset: Dataset,
    buckets: Buckets,
    num_texts: int | None = None,
) -> list[DiskNeed]:
    """A rough estimate of what the run will write to each folder. num_texts: cached captions; None: one per sample."""
    method = facts_of(config)
    own = np.array(buckets.costs, np.int64)[buckets.index]
    pixels = float(own.sum())
    for condition in conditions_of(family) if method.uses_denoiser else ():
        pixels += sum(condition.cached_pixels(dataset, sample, size) for sample, size in enumerate(own.tolist()))
    num_texts = len(dataset) if num_texts is None else num_texts
    of_caption = family.caption_bytes * size_share(config, base.size_bytes or None, of_widths=True)
    cache = int(pixels) * family.latent_bytes_per_pixel + num_texts * of_caption
    written = run_disk_bytes(config, base.size_bytes or None)
    needed = {"cache_dir": cache if method.uses_denoiser else 0, "workspace_dir": written}
    return [DiskNeed(setting, getattr(config, setting), size) for setting, size in needed.items()]


@dataclass(frozen=True)
class DiskNeed:
    """The disk space that a run needs in one folder. setting: the one that names the folder."""

    setting: str
    folder: str
    needed_bytes: float

    @property
    def free_bytes(self) -> int:
        return RunFolder(self.folder).free_bytes()

    @property
    def warning(self) -> str | None:
        if self.free_bytes >= self.needed_bytes:
            return None
        return (
            f"{self.setting} {self.folder!r} has {spoken_bytes(self.free_bytes)} free, but the run needs about "
            f"{spoken_bytes(self.needed_bytes)}: free some space or choose another folder."
        )
