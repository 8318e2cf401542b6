"""Prepares a run up to its first step: checks, model, caches, plan."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from modules.config.batch_size import accumulation_steps, describe_scaling, global_batch, learning_rate_factor
from modules.config.counted import counted
from modules.config.errors import ConfigError
from modules.config.methods import facts_of
from modules.data.caching import check_unusable
from modules.data.captions import check_placeholders
from modules.data.CaptionSource import CaptionSource
from modules.data.concepts import caption_prompts, captions
from modules.data.DatasetEncoder import DatasetEncoder
from modules.data.draws import torch_seed
from modules.data.errors import DataError
from modules.data.prepare import prepare_data
from modules.data.references import of_captions
from modules.data.run_summary import count_texts, disk_needs, image_warnings
from modules.data.RunPlan import RunPlan, samples_digest
from modules.data.SampleSource import SampleSource
from modules.diffusion.timestep_sampling import timestep_distribution
from modules.distributed.usable_gpus import describe_device
from modules.families.conditioning import is_unconditional_zero
from modules.families.prediction import check_prediction
from modules.families.registry import FAMILIES
from modules.families.TextEncoding import collate_text
from modules.machine.memory_estimate import GIB, blocks_to_swap
from modules.methods.layers import check_layers
from modules.methods.parts import trained_in
from modules.methods.registry import METHODS
from modules.session.out_of_memory import must_fit
from modules.session.RunFolder import RunFolder
from modules.trainer.checks import check_batch_divides, check_parts, check_precision, check_start
from modules.trainer.compiling import check_compiler, compile_blocks
from modules.trainer.optimizers import make_layout_compatible
from modules.trainer.PreparedRun import PreparedRun
from modules.trainer.rank_checks import check_same, check_shared_folder, settings_digest, weights_digest
from modules.trainer.resuming import check_resumed_batch, newest_backup
from modules.trainer.SamplePrompts import SamplePrompts
from modules.trainer.SampleRound import SampleRound
from modules.trainer.sampling import with_prompts, with_sizes
from modules.weights.BaseModel import BaseModel
from modules.weights.device_memory import free_bytes
from modules.weights.training_adapter import TrainingAdapter, read_training_adapter

if TYPE_CHECKING:
    from modules.config.PartConfig import PartConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.data.records import CachedRecords
    from modules.diffusion.timesteps import TimestepDistribution
    from modules.distributed.Runtime import Runtime
    from modules.families.Family import Family
    from modules.methods.Method import Method
    from modules.session.TrainCallbacks import TrainCallbacks
    from modules.trainer.BackupStore import Backup, BackupStore
    from modules.trainer.StartProgress import StartProgress


def prepare_run(
    config: TrainConfig,
    runtime: Runtime,
    callbacks: TrainCallbacks,
    progress: StartProgress,
    backups: BackupStore,
    resume: bool = False,
) -> PreparedRun:
    """Prepares everything that comes before the first collective. All ranks call it and get the same result.

    resume: from the newest good backup in `backups`.
    Raises UserError for problems that the user can fix, and StopRequested if a stop is requested meanwhile.
    """
    family = FAMILIES[config.family].with_text_settings(config.model)
    method = METHODS[config.method]
    run_folder = RunFolder(config.workspace_dir)
    same = partial(check_same, runtime, 0)
    # first, because a resuming rank waits for the others where a fresh one does not
    same("options", lambda: str(resume), "--resume in the command")
    base_info, warnings = check_start(config, runtime.world_size, resume)
    for text in warnings:
        progress.warn(text)
    check_precision(config.model, runtime.device)
    if compiles(config):
        check_compiler(runtime.device)
    if runtime.world_size == 1:  # with several ranks, setup_distributed prints the devices
        callbacks.on_status(f"Training on {describe_device(runtime.device)}")
    dataset, buckets = prepare_data(config, family)
    # read now, so that an unreadable caption is found before hours of caching
    texts = captions(dataset) if method.facts.uses_captions else [("",)] * len(dataset)
    check_placeholders(config, (text for several in texts for text in several))
    for need in disk_needs(config, family, base_info, dataset, buckets, count_texts(config, dataset, texts)):
        if need.warning:
            progress.warn(need.warning)
    if runtime.is_main:
        run_folder.create()
    same("settings", lambda: settings_digest(config), "the files of its settings")
    check_shared_folder(config, runtime, run_folder.path)
    same("images or captions", lambda: samples_digest(dataset, captions=texts), "the concepts")
    backup = _find_backup(config, runtime, progress, run_folder, backups, resume)
    for text in image_warnings(config, dataset, learns_captions=method.facts.uses_captions):
        progress.warn(text)

    callbacks.on_status("Opening model")
    base = BaseModel(family, config.model, runtime.device, runtime.loading_turn)
    base.num_swapped = num_swapped_blocks(config, runtime.device, runtime.world_size, callbacks.on_status)
    parts = _trained_parts(config, runtime, method, base)
    encoder = DatasetEncoder(
        base,
        dataset,
        buckets,
        Path(os.path.expanduser(config.cache_dir)),
        runtime,
        config.distributed_data_loading,
        progress.report_or_stop,
        progress.report,
    )
    takes_latents = method.facts.uses_denoiser
    if not takes_latents:
        base.require(family.vae)
    pictures = encoder.latents() if takes_latents else encoder.pixels()
    check_unusable(dataset, encoder.unusable, config.data.max_unreadable_share)
    for path, reason in {dataset.paths[sample]: reason for sample, reason in encoder.unusable.items()}.items():
        progress.warn(f"{path} is left out: {reason}.")
    caches_text = takes_latents and not _trains_text(base, parts)
    variants = config.data.caption_variants if caches_text else None
    caption_source = CaptionSource(dataset, texts, config.seed, variants, config.loss.output_preservation)
    cached = _cached_text(config, encoder, caption_source, family) if caches_text else None
    source = SampleSource(
        dataset=dataset,
        buckets=buckets,
        pictures=pictures,
        captions=caption_source,
        text=cached,
        caption_dropout=config.data.caption_dropout,
        image_to_video=config.data.image_to_video if family.image_pipeline else 0.0,
        last_frame=config.data.last_frame if family.takes_last_frame else 0.0,
        whole_mask=config.data.inpainting_whole,
        seed=config.seed,
        dtype=torch.promote_types(base.dtype, torch.float32),
        sizes=takes_latents and family.takes_sizes,
        sees_references=family.text.sees_references,
        **(_noise_options(config, base) if takes_latents else {}),
    )
    prompts = caption_prompts(texts, dataset.concepts, len(config.sampling.samples))
    sampling = with_prompts(config.sampling, prompts, *of_captions(dataset, texts, family))
    sampling = with_sizes(sampling, config)
    sample_prompts = SamplePrompts(base)
    if sampling.makes_samples and not _trains_text(base, parts):
        with must_fit("the text encoders", "model.text_encoder_quantization"):
            SampleRound(sampling, sample_prompts, runtime, callbacks, progress.commands).encode_prompts()
    callbacks.on_status("Loading model")
    attach_method(config, method, base, parts, shards=runtime.shards, report=callbacks.on_status)
    same("weights", lambda: weights_digest(base, runtime), "model.base")
    training_adapter = _training_adapter(config, method, base)
    if training_adapter:
        same("training adapter", training_adapter.digest, "model.training_adapter")

    size = _global_batch(config, runtime, progress, backup)
    plan = RunPlan(dataset, buckets, encoder.unusable, config.seed, size)
    if not plan.num_samples:
        raise DataError("concepts: their repeats leave no sample in an epoch; raise concepts.N.repeats.")
    digest = samples_digest(dataset, encoder.unusable)
    if backup and backup.data["run"]["samples"] != digest:
        progress.warn("The images have changed since the backup: the current epoch is planned again.")
    if not backup and (scaling := describe_scaling(config, runtime.world_size)):
        callbacks.on_status(scaling)
    loss = method.loss(base, config)
    loss.same_passes = runtime.shards
    factor = backup.data["learning_rate_factor"] if backup else learning_rate_factor(config, runtime.world_size)
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
        accumulation=accumulation_steps(config, runtime.world_size, size),
        learning_rate_factor=factor,
        backup=backup,
    )


def compiles(config: TrainConfig) -> bool:
    """Whether the run compiles its denoisers."""
    return config.model.compile != "off" and METHODS[config.method].facts.uses_denoiser


def num_swapped_blocks(
    config: TrainConfig, device: torch.device, num_ranks: int, report: Callable[[str], None] = lambda text: None
) -> int:
    """The number of blocks of each denoiser to swap, by the free memory of the device if the settings leave it open.

    report: takes the reason for such a choice.
    """
    free = free_bytes(device)
    if config.model.blocks_to_swap is not None or free is None:
        return config.model.blocks_to_swap or 0
    count = blocks_to_swap(config, free, num_ranks)
    fits = "needs swapped blocks to fit" if count else "fits without swapped blocks"
    report(f"By estimate, the run {fits} in the {free / GIB:.1f} GiB that are free on the GPU")
    return count


def _find_backup(
    config: TrainConfig,
    runtime: Runtime,
    progress: StartProgress,
    run_folder: RunFolder,
    backups: BackupStore,
    resume: bool,
) -> Backup | None:
    """The backup to resume from, if any. A new run never starts in the folder of another one."""
    if not resume:
        if runtime.is_main:
            run_folder.refuse_earlier_run()
        return None
    backup = newest_backup(backups, runtime)
    if backup is None:
        progress.warn(f"There is no backup in {run_folder.backup_dir}: training starts at step 0.")
        check_batch_divides(config, runtime.world_size)
    return backup


def _trained_parts(config: TrainConfig, runtime: Runtime, method: Method, base: BaseModel) -> dict[str, PartConfig]:
    """The components of this base to train. Raises UserError, before anything is cached, if there are none."""
    parts = trained_in(method, base, config)
    if method.facts.trains_weights and (quantized := base.stored_quantized):
        raise ConfigError(
            f"method {config.method!r}: the {quantized[0]} of model.base {config.model.base!r} is quantized and can "
            "neither train nor be saved with the model; choose a base model that is not quantized, or train a LoRA."
        )
    if runtime.shards and (quantized := [name for name in base.stored_quantized if name in parts]):
        raise ConfigError(
            f"distributed_strategy {config.distributed_strategy}: the {quantized[0]} of model.base "
            f"{config.model.base!r} is quantized and can't be sharded; choose a base model that is not quantized, or "
            "use ddp."
        )
    check_parts(config, parts)  # again, because this base may lack a component of its family
    check_layers(method, base, parts, config)
    if method.facts.uses_denoiser:
        check_prediction(base.family, base.pipe.scheduler.config)
    return parts


def _trains_text(base: BaseModel, parts: dict[str, PartConfig]) -> bool:
    return any(part in base.family.text.encoders for part in parts)


def _cached_text(
    config: TrainConfig, encoder: DatasetEncoder, captions: CaptionSource, family: Family
) -> CachedRecords[str] | CachedRecords[tuple[str, int]]:
    if family.text.sees_references:
        return encoder.text_with_references(captions.texts_by_sample(with_empty=config.data.caption_dropout > 0))
    return encoder.text(captions.all_texts())


def _noise_options(config: TrainConfig, base: BaseModel) -> dict[str, Any]:
    """The arguments of a SampleSource that only denoisers need."""
    return {
        "diffusion": config.diffusion,
        "loss": config.loss,
        "timesteps": _of_the_expert(
            timestep_distribution(base.family, base.pipe.scheduler.config, config.diffusion), config, base
        ),
        "zero_unconditional": is_unconditional_zero(base.family, base.pipe),
        "collate": partial(collate_text, base.family.text),
    }


def _of_the_expert(timesteps: TimestepDistribution, config: TrainConfig, base: BaseModel) -> TimestepDistribution:
    """The distribution within the range of the expert that trains, if it is only one."""
    chosen = base.family.denoisers_of(config.denoiser.expert)
    if not facts_of(config).chooses_parts or len(chosen) == len(base.family.denoisers):
        return timesteps
    assert base.family.experts is not None  # else all denoisers are chosen
    low, high = base.family.experts(base.pipe.config)[chosen[0]]
    # the upper border belongs to the other expert, also where float32 rounds up to it
    limits = max(timesteps.low, low / 1000), min(timesteps.high, high / 1000 - 1e-6)
    if limits[0] >= limits[1]:
        raise ConfigError(
            f"denoiser.expert {config.denoiser.expert}: it has the timesteps {max(0, low):g} to {min(1000, high):g}, "
            "and diffusion.min_timestep and max_timestep leave none of them; widen those, or train the other expert."
        )
    return replace(timesteps, low=limits[0], high=limits[1])


def attach_method(
    config: TrainConfig,
    method: Method,
    base: BaseModel,
    parts: dict[str, PartConfig],
    shards: bool = False,
    report: Callable[[str], None] = lambda text: None,
) -> None:
    """Loads the components that a step needs; after caching, so that encoders and denoiser don't share memory.

    shards: they are to be sharded, so they stay on the CPU, or in their files if nothing needs the weights before.
    report: takes a line for the log.
    """
    denoisers = _needed_denoisers(config, method, base.family)
    encoders = base.family.text_components if _trains_text(base, parts) else ()
    present = [name for name in (*denoisers, *encoders) if name in base.component_names]
    with must_fit("the model", "model.denoiser_quantization"):
        lazily = shards and not method.reads_weights(config)
        base.require(*parts, *present, on_device=not shards, lazily=lazily)
    torch.manual_seed(torch_seed(config.seed, "initialisation"))
    method.attach(base, config)
    method.check_output(base, config)
    for name in set(denoisers).intersection(present) if base.num_swapped else ():
        report(base.swap_blocks(name))
    make_layout_compatible(config.optimizer, (p for name in parts for p in base.module(name).parameters()))
    for name in set(denoisers).intersection(present) if compiles(config) else ():
        compile_blocks(base.module(name))


def _training_adapter(config: TrainConfig, method: Method, base: BaseModel) -> TrainingAdapter | None:
    """That of the settings, added to the denoisers, which are loaded."""
    file = config.model.training_adapter
    if not file or not method.facts.uses_denoiser:
        return None
    return TrainingAdapter(base, read_training_adapter(file, base.family))


def _needed_denoisers(config: TrainConfig, method: Method, family: Family) -> tuple[str, ...]:
    """The denoisers that a run has to load: an expert that does not train only for samples, or to save the model."""
    facts = method.facts
    if not facts.uses_denoiser:
        return ()
    if config.sampling.makes_samples or facts.trains_weights or not facts.chooses_parts or not config.denoiser.train:
        return family.denoisers
    return family.denoisers_of(config.denoiser.expert)


def _global_batch(config: TrainConfig, runtime: Runtime, progress: StartProgress, backup: Backup | None) -> int:
    """Samples per step. A resumed run keeps the global batch of its backup on any number of ranks."""
    wanted = global_batch(config, runtime.world_size)
    size = backup.data["run"]["global_batch"] if backup else wanted
    if size != wanted:
        progress.warn(f"batch_size: the run continues with the {counted(size, 'sample')} per step of its backup.")
    check_resumed_batch(size, runtime.world_size)
    return size
