"""Prepares a run up to its first step: checks, model, caches, plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from modules.config.attentions import ATTENTIONS
from modules.config.batch_size import accumulation_steps, describe_scaling, global_batch, learning_rate_factor
from modules.config.counted import counted
from modules.config.errors import ConfigError
from modules.config.families import load_families
from modules.config.methods import facts_of, fixed_prompts
from modules.data.caption_remarks import caption_remarks
from modules.data.captions import check_placeholders, trained_words
from modules.data.CaptionSource import CaptionSource
from modules.data.compiled_sizes import compiled_sizes
from modules.data.concepts import caption_prompts, captions
from modules.data.conditions import conditions_of, shapes_apart
from modules.data.conditions.pairs import family_of_run
from modules.data.DatasetEncoder import DatasetEncoder
from modules.data.decoding import check_unusable
from modules.data.drawn_images import draws_images
from modules.data.errors import DataError
from modules.data.prepare import prepare_data
from modules.data.run_summary import count_texts, disk_needs, image_warnings
from modules.data.RunPlan import RunPlan, samples_digest
from modules.data.sample_images import settings_of_captions
from modules.data.SampleSource import SampleSource
from modules.diffusion.timestep_sampling import timestep_distribution
from modules.distributed.attention_backends import choose_attention
from modules.distributed.other_attention import check_attention
from modules.distributed.usable_gpus import describe_device
from modules.families.conditioning import is_unconditional_zero
from modules.families.registry import FAMILIES
from modules.families.TextEncoding import collate_text
from modules.layers.SharedSlabs import slabs_to_share
from modules.methods.registry import METHODS
from modules.sampling.generation import with_prompts, with_sizes
from modules.sampling.SamplePrompts import SamplePrompts
from modules.sampling.SampleRound import SampleRound
from modules.session.out_of_memory import must_fit
from modules.session.RunFolder import RunFolder
from modules.trainer.attach_method import (
    attach_method,
    compiles,
    load_training_adapter,
    num_swapped_blocks,
    parts_to_train,
    trains_text,
)
from modules.trainer.attention_cases import attention_cases, in_all_widths
from modules.trainer.checks import check_batch_divides, check_precision, check_start
from modules.trainer.compile_cache import keep_compiled
from modules.trainer.compiling import check_compiler, compile_blocks
from modules.trainer.FallbackFolders import FallbackFolders
from modules.trainer.PreparedRun import PreparedRun
from modules.trainer.rank_checks import check_same, check_shared_folder, settings_digest, weights_digest
from modules.trainer.resuming import check_resumed_batch, newest_backup
from modules.weights.BaseModel import BaseModel
from modules.weights.blocks import repeated_blocks
from modules.weights.clip_layers import check_clip_skips
from modules.weights.quantization import check_matmul
from modules.weights.training_adapter import TrainingAdapter

if TYPE_CHECKING:
    from modules.config.DataConfig import DataConfig
    from modules.config.PartConfig import PartConfig
    from modules.config.SamplingConfig import SamplingConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.data.buckets import Buckets
    from modules.data.Dataset import Dataset
    from modules.data.epoch_plan import MicroBatch
    from modules.data.records import CachedRecords
    from modules.diffusion.timesteps import TimestepDistribution
    from modules.distributed.attention_trial import AttentionCase
    from modules.distributed.Runtime import Runtime
    from modules.families.Family import Family
    from modules.methods.Method import Method
    from modules.session.TrainCallbacks import TrainCallbacks
    from modules.trainer.BackupStore import Backup, BackupStore
    from modules.trainer.checks import CheckedStart
    from modules.trainer.StartProgress import StartProgress
    from modules.weights.inspect import BaseInfo


def prepare_run(
    config: TrainConfig,
    runtime: Runtime,
    callbacks: TrainCallbacks,
    progress: StartProgress,
    backups: BackupStore,
    resume: bool = False,
    checked: CheckedStart | None = None,
) -> PreparedRun:
    """Prepares everything that comes before the first collective. All ranks call it and get the same result.

    resume: from the newest good backup in `backups`. checked: what `check_start` has found in this process; None: it is
    asked here.
    Raises UserError for problems that the user can fix, and StopRequested if a stop is requested meanwhile.
    """
    family = family_of_run(FAMILIES[config.family].with_text_settings(config.model), config)
    start = _Start(config, runtime, callbacks, progress, family, METHODS[config.method])
    # first, because a resuming rank waits for the others where a fresh one does not
    start.compare_ranks("options", lambda: str(resume), "--resume in the command")
    base_info = _check_settings(start, resume, checked)
    data = _read_data(start, base_info)
    backup = _join_run_folder(start, data, backups, resume)
    for text in image_warnings(config, data.dataset):
        progress.warn(text)
    if start.method.facts.uses_captions:
        for finding in caption_remarks(data.dataset, data.without_text):
            progress.warn(finding.message)

    callbacks.on_status("Opening model")
    shared_slabs = partial(slabs_to_share, runtime)
    base = BaseModel(family, config.model, runtime.device, runtime.loading_turn, shared_slabs, info=base_info)
    if start.method.facts.uses_denoiser:  # again, for a model that comes from the Hub
        check_clip_skips(config.model, family, base.path)
    base.num_swapped = num_swapped_blocks(
        config, runtime.device, runtime.world_size, runtime.local_world_size, callbacks.on_status
    )
    parts = parts_to_train(config, runtime.shards, start.method, base, progress.warn)
    source, unusable = _cache(start, data, base, parts)
    sampling, sample_prompts = _prepare_samples(start, data, unusable, base, parts)

    callbacks.on_status("Loading model")
    training_adapter = _load_model(start, base, parts)
    _choose_attention(start, base, source)
    size = _global_batch(start, backup)
    apart = shapes_apart(source.conditions, data.dataset, data.buckets) if runtime.shards else None
    plan = RunPlan(data.dataset, data.buckets, unusable, config.seed, size, apart)
    if not plan.num_samples:
        raise DataError.at("concepts", ": their repeats leave no sample in an epoch; raise concepts.N.repeats.")
    accumulation = accumulation_steps(config, runtime.world_size, size)
    compiled_first = _compile(start, base, plan, data.buckets, accumulation) if compiles(config) else ()
    digest = _digest_of_samples(start, data, unusable, backup)
    factor = _learning_rate_factor(start, backup)
    loss = start.method.loss(base, config)
    loss.same_passes = runtime.shards
    return PreparedRun(
        config=config,
        base=base,
        parts=parts,
        loss=loss,
        training_adapter=training_adapter,
        source=source,
        plan=plan,
        sampling=sampling,
        sample_prompts=sample_prompts,
        data_digest=digest,
        global_batch=size,
        accumulation=accumulation,
        learning_rate_factor=factor,
        backup=backup,
        compiled_first=compiled_first,
    )


@dataclass(frozen=True)
class _Start:
    """What most steps of the preparation need."""

    config: TrainConfig
    runtime: Runtime
    callbacks: TrainCallbacks
    progress: StartProgress
    family: Family
    method: Method

    def compare_ranks(self, what: str, digest: Callable[[], str], where: str) -> None:
        """As `check_same`, before the first step."""
        check_same(self.runtime, 0, what, digest, where)


class _Data(NamedTuple):
    """The samples of a run. texts: the captions of each. without_text: the images whose caption is empty."""

    dataset: Dataset
    buckets: Buckets
    texts: list[tuple[str, ...]]
    without_text: set[str]


def _check_settings(start: _Start, resume: bool, checked: CheckedStart | None) -> BaseInfo:
    """Checks the settings with this device; returns what model.base is."""
    config, device = start.config, start.runtime.device
    checked = checked or check_start(config, start.runtime.world_size, resume)
    for problem in checked.warnings:
        start.progress.warn(problem.message)
    check_precision(config.model, device)
    if compiles(config):
        check_compiler(config.model, device)
        keep_compiled(prunes=start.runtime.local_rank == 0)
    if start.method.facts.uses_denoiser:
        check_matmul(config.model, device)
    check_attention(config.model.attention, device)
    if start.runtime.world_size == 1:  # with several ranks, setup_distributed prints the devices
        start.callbacks.on_status(f"Training on {describe_device(device)}")
    return checked.base


def _read_data(start: _Start, base_info: BaseInfo) -> _Data:
    """Lists images and captions, and warns if the disks have no room for what is made of them."""
    config = start.config
    dataset, buckets = prepare_data(config, start.family)
    # read now, so that an unreadable caption is found before hours of caching
    texts: list[tuple[str, ...]] = [("",)] * len(dataset)
    empty: set[str] = set()
    if start.method.facts.uses_captions:
        texts = captions(dataset, empty=empty)
    check_placeholders(config, (text for several in texts for text in several))
    for need in disk_needs(config, start.family, base_info, dataset, buckets, count_texts(config, dataset, texts)):
        if need.warning:
            start.progress.warn(need.warning)
    return _Data(dataset, buckets, texts, empty)


def _join_run_folder(start: _Start, data: _Data, backups: BackupStore, resume: bool) -> Backup | None:
    """Creates the run folder, once all ranks have the same settings and images; returns the backup to resume from."""
    config, runtime = start.config, start.runtime
    run_folder = RunFolder(config.workspace_dir)
    if runtime.is_main:
        run_folder.create()
    start.compare_ranks("settings", lambda: settings_digest(config), "the files of its settings")
    check_shared_folder(config, runtime, run_folder.path)
    start.compare_ranks("images or captions", lambda: samples_digest(data.dataset, captions=data.texts), "the concepts")
    return _find_backup(start, run_folder, backups, resume)


def _find_backup(start: _Start, run_folder: RunFolder, backups: BackupStore, resume: bool) -> Backup | None:
    """The backup to resume from, if any. A new run never starts in the folder of another one."""
    if not resume:
        if start.runtime.is_main:
            run_folder.refuse_earlier_run()
        return None
    backup = newest_backup(backups, start.runtime)
    if backup is None:
        text = f"There is no backup in {run_folder.backup_dir}: training starts at step 0."
        if elsewhere := FallbackFolders(run_folder.path, start.config.output.fallback_dir).newest_backup():
            text += (
                f" One of step {elsewhere.step} is in {elsewhere.path}: to continue from it, stop this run, move it to "
            )
            text += f"{run_folder.backup_dir} and resume."
        start.progress.warn(text)
        check_batch_divides(start.config, start.runtime.world_size)
    return backup


def _cache(
    start: _Start, data: _Data, base: BaseModel, parts: dict[str, PartConfig]
) -> tuple[SampleSource, dict[int, str]]:
    """Encodes images and captions, as far as the method takes them encoded.

    Returns the source of batches, and the samples that are left out, with the reasons.
    """
    config, family, dataset = start.config, start.family, data.dataset
    encoder = DatasetEncoder(
        base,
        dataset,
        data.buckets,
        Path(os.path.expanduser(config.cache_dir)),
        start.runtime,
        config.distributed_data_loading,
        start.progress.report_or_stop,
        start.progress.report,
    )
    takes_latents = start.method.facts.uses_denoiser
    if not takes_latents:
        base.require(family.vae)
    encode = encoder.latents if takes_latents else encoder.pixels
    pictures = encoder.drawn() if draws_images(config) else encode()
    check_unusable(dataset, encoder.unusable, config.data.max_unreadable_share)
    for path, reason in {dataset.paths[sample]: reason for sample, reason in encoder.unusable.items()}.items():
        start.progress.warn(f"{path} is left out: {reason}.")
    caches_text = takes_latents and not trains_text(base, parts)
    variants = config.data.caption_variants if caches_text else None
    preserves = config.loss.output_preservation
    fixed = tuple(fixed_prompts(config).values())
    caption_source = CaptionSource(dataset, data.texts, config.seed, variants, preserves, trained_words(config), fixed)
    source = SampleSource(
        dataset=dataset,
        buckets=data.buckets,
        pictures=pictures,
        captions=caption_source,
        text=_cached_text(config.data, encoder, caption_source, family) if caches_text else None,
        caption_dropout=config.data.caption_dropout,
        conditions=conditions_of(family) if takes_latents else (),
        data=config.data,
        seed=config.seed,
        dtype=torch.promote_types(base.dtype, torch.float32),
        sees_images=family.text.sees_images,
        **(_noise_options(config, base) if takes_latents else {}),
    )
    return source, encoder.unusable


def _cached_text(
    data: DataConfig, encoder: DatasetEncoder, captions: CaptionSource, family: Family
) -> CachedRecords[str] | CachedRecords[tuple[str, int]]:
    if family.text.sees_images:
        return encoder.text_with_images(captions.texts_by_sample(with_empty=data.caption_dropout > 0))
    return encoder.text(captions.all_texts())


def _noise_options(config: TrainConfig, base: BaseModel) -> dict[str, Any]:
    """The arguments of a SampleSource that only denoisers need."""
    return {
        "diffusion": config.diffusion,
        "loss": config.loss,
        "timesteps": _of_the_experts(
            timestep_distribution(base.family, base.pipe.scheduler.config, config.diffusion), config, base
        ),
        "zero_unconditional": is_unconditional_zero(base.family, base.pipe),
        "fixed_prompts": fixed_prompts(config),
        "collate": partial(collate_text, base.family.text),
    }


def _of_the_experts(timesteps: TimestepDistribution, config: TrainConfig, base: BaseModel) -> TimestepDistribution:
    """The distribution within the range of the expert that trains, if it is only one, or divided among both."""
    if base.family.experts is None:
        return timesteps
    ranges = base.family.experts(base.pipe.config)
    chosen = base.family.denoisers_of(config.denoiser.expert)
    if not facts_of(config).chooses_parts or len(chosen) == len(base.family.denoisers):
        boundary = ranges[base.family.denoisers[0]][0] / 1000  # of the one for high noise
        return replace(timesteps, boundary=boundary, share_above=config.diffusion.expert_share)
    low, high = ranges[chosen[0]]
    # the upper border belongs to the other expert, also where float32 rounds up to it
    limits = max(timesteps.low, low / 1000), min(timesteps.high, high / 1000 - 1e-6)
    if limits[0] >= limits[1]:
        raise ConfigError.at(
            "denoiser.expert",
            f"{config.denoiser.expert}: it has the timesteps {max(0, low):g} to {min(1000, high):g}, "
            "and diffusion.min_timestep and max_timestep leave none of them; widen those, or train the other expert.",
        )
    return replace(timesteps, low=limits[0], high=limits[1])


def _prepare_samples(
    start: _Start, data: _Data, unusable: Collection[int], base: BaseModel, parts: dict[str, PartConfig]
) -> tuple[SamplingConfig, SamplePrompts]:
    """Completes the settings of samples and, while their encoders don't train, encodes their prompts."""
    config = start.config
    usable = [options for sample, options in enumerate(data.texts) if sample not in unusable]
    prompts = caption_prompts(usable, data.dataset.concepts, len(config.sampling.samples))
    settings = settings_of_captions(data.dataset, data.texts, start.family, unusable)
    sampling = with_prompts(config.sampling, prompts, settings)
    sampling = with_sizes(sampling, config)
    sample_prompts = SamplePrompts(base)
    if sampling.makes_samples and not trains_text(base, parts):
        commands = start.progress.commands
        with must_fit("the text encoders", "model.text_encoder_quantization"):
            SampleRound(sampling, sample_prompts, start.runtime, start.callbacks, commands).encode_prompts()
    return sampling, sample_prompts


def _load_model(start: _Start, base: BaseModel, parts: dict[str, PartConfig]) -> TrainingAdapter | None:
    """Loads what a step needs, the same on all ranks; returns the training adapter, if there is one."""
    config, runtime = start.config, start.runtime
    attach_method(config, start.method, base, parts, shards=runtime.shards, report=start.callbacks.on_status)
    start.compare_ranks("weights", lambda: weights_digest(base, runtime), "model.base")
    adapter = load_training_adapter(config, start.method, base, start.progress.warn)
    if adapter:
        start.compare_ranks("training adapter", adapter.digest, "model.training_adapter")
    return adapter


def _choose_attention(start: _Start, base: BaseModel, source: SampleSource) -> None:
    """For the steps and samples. Not before caching, so that cached texts and latents don't depend on it."""
    model = start.config.model
    mixed = {"bf16": torch.bfloat16, "fp16": torch.float16}
    dtype = mixed.get(model.mixed_precision, getattr(torch, model.weight_dtype))

    def cases() -> list[AttentionCase]:
        loaded = [base.denoiser(name) for name in base.family.denoisers if base.is_loaded(name)]
        found = attention_cases(source, loaded[0].config, base.family.patch_size) if loaded else []
        is_other = model.attention in ATTENTIONS
        return in_all_widths(found, load_families()[base.family.name].attention) if is_other else found

    text, warnings = choose_attention(model.attention, start.runtime, cases, dtype, start.progress.warn)
    for warning in warnings:
        start.progress.warn(warning)
    if text and start.runtime.is_main:
        start.callbacks.on_status(text)


def _compile(
    start: _Start, base: BaseModel, plan: RunPlan, buckets: Buckets, accumulation: int
) -> tuple[MicroBatch, ...]:
    """Has the loaded denoisers compiled when they are first called; returns `CompiledSizes.first`."""
    sizes = compiled_sizes(start.config.model, base.family, plan, buckets, start.runtime.world_size, accumulation)
    for name in base.family.denoisers:
        if base.is_loaded(name):
            denoiser = base.module(name)
            blocks = repeated_blocks(base.family, denoiser).values()
            compile_blocks(denoiser, sizes.all_sizes, start.progress.warn, blocks)
    return sizes.first


def _global_batch(start: _Start, backup: Backup | None) -> int:
    """Samples per step. A resumed run keeps the global batch of its backup on any number of ranks."""
    wanted = global_batch(start.config, start.runtime.world_size)
    size = backup.data["run"]["global_batch"] if backup else wanted
    if size != wanted:
        start.progress.warn(f"batch_size: the run continues with the {counted(size, 'sample')} per step of its backup.")
    check_resumed_batch(size, start.runtime.world_size)
    return size


def _digest_of_samples(start: _Start, data: _Data, unusable: dict[int, str], backup: Backup | None) -> str:
    """The digest of the images that are trained, with a warning if it is not that of the backup."""
    digest = samples_digest(data.dataset, unusable)
    if backup and backup.data["run"]["samples"] != digest:
        start.progress.warn("The images have changed since the backup: the current epoch is planned again.")
    return digest


def _learning_rate_factor(start: _Start, backup: Backup | None) -> float:
    """The factor of all learning rates; a resumed run keeps that of its backup."""
    if backup:
        return backup.data["learning_rate_factor"]
    num_ranks = start.runtime.world_size
    if scaling := describe_scaling(start.config, num_ranks):
        start.callbacks.on_status(scaling)
    return learning_rate_factor(start.config, num_ranks)
