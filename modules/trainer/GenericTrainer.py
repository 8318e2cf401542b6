"""Trains a diffusion model: loads it, caches the data, runs the loop, samples, backs up and saves.

trainer = GenericTrainer(config, callbacks, commands)
trainer.start()
trainer.train()
trainer.end()
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from modules.config.batch_size import accumulation_steps, describe_scaling, global_batch, learning_rate_factor
from modules.data.batches import SampleSource, prefetch
from modules.data.captions import check_placeholders
from modules.data.CaptionSource import CaptionSource
from modules.data.concepts import captions
from modules.data.draws import torch_seed
from modules.data.Encoder import Encoder
from modules.data.encoding import check_unusable
from modules.data.errors import DataError
from modules.data.holdout import none_held_out
from modules.data.prepare import prepare_data
from modules.data.run_summary import count_texts, disk_needs, picture_warnings, step_warnings
from modules.data.RunPlan import RunPlan, samples_digest
from modules.distributed.Runtime import REQUEUE, Runtime, default_device
from modules.distributed.usable_gpus import device_words
from modules.families.conditioning import is_unconditional_zero
from modules.families.prediction import check_prediction
from modules.families.registry import FAMILIES
from modules.families.TextEncoding import collate_text
from modules.families.timesteps import timesteps_of
from modules.methods.layers import check_layers
from modules.methods.parts import trained_in
from modules.methods.registry import METHODS
from modules.session.backups import resume_advice
from modules.session.names import safe_file_name
from modules.session.out_of_memory import must_fit
from modules.session.RunFolder import RunFolder
from modules.trainer.BackupStore import Backup, BackupStore
from modules.trainer.checks import check_parts, check_precision, check_shares, check_start
from modules.trainer.compiling import check_compiler, compile_blocks
from modules.trainer.EngineSettings import EngineSettings
from modules.trainer.FallbackSaver import FallbackSaver
from modules.trainer.LastSave import LastSave
from modules.trainer.ModelStore import AVERAGED_ENDING, ModelStore
from modules.trainer.param_groups import param_groups
from modules.trainer.rank_checks import check_same, settings_digest, weights_digest
from modules.trainer.resuming import check_divides, newest_backup
from modules.trainer.SampleRound import SampleRound
from modules.trainer.sampling import lower_precision
from modules.trainer.Step import Step
from modules.trainer.TrainingEngine import Action, TrainingEngine
from modules.trainer.TrainingError import StopRequested, TrainingError
from modules.trainer.Trigger import Trigger
from modules.trainer.validation_loss import ValidationLoss
from modules.weights.BaseModel import BaseModel
from modules.weights.checksum import checksum

if TYPE_CHECKING:
    from torch import Tensor

    from modules.config.TrainConfig import TrainConfig
    from modules.session.TrainCallbacks import TrainCallbacks
    from modules.session.TrainCommands import TrainCommands

COMPILING_SECONDS = 900.0  # of a step that meets a new shape


class GenericTrainer(TrainingEngine):
    """One run of `config`, into its run folder. resume: goes on from the newest good backup there.

    Each of `start`, `train` and `end` raises UserError, one sentence, for what the user can mend. On many ranks each
    calls all three; what concerns the run as a whole is told by rank 0 alone.
    """

    def __init__(
        self,
        config: TrainConfig,
        callbacks: TrainCallbacks | None = None,
        commands: TrainCommands | None = None,
        runtime: Runtime | None = None,
        resume: bool = False,
    ):
        runtime = runtime or Runtime(default_device(config.device_indexes))
        super().__init__(engine_settings(config, runtime.world_size), callbacks, commands, runtime)
        self.config = config
        self.resume = resume
        self.requeues = False  # whether this rank is to have SLURM run the job again
        self.family = FAMILIES[config.family]
        self.method = METHODS[config.method]
        self.run_folder = RunFolder(config.workspace_dir)
        self.compiles = config.model.compile != "off" and self.method.facts.uses_denoiser
        self._last_progress = 0.0
        self.backups = BackupStore(
            self.run_folder.backup_dir, config.backup.keep, self.callbacks.on_backup, self.callbacks.on_warning
        )
        self.models = ModelStore(self.run_folder.models_dir, self.callbacks.on_saved, self.callbacks.on_warning)
        self.saver = FallbackSaver(self.run_folder, config.output, self.callbacks)

    def start(self) -> None:
        """Everything up to the first step: checks, model, caches, plan, optimizer; or a backup's state."""
        self.runtime.while_waiting = self._end_where_asked
        # CUDA's alone, unlike `torch.set_float32_matmul_precision`, which CPUs heed as well; not by the newer
        # `fp32_precision`, after which torch 2.13's compiler can't read these any more
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.config.model.tf32
        # first: a rank that goes on meets the others where one that begins anew does not
        self._check_same("options", lambda: str(self.resume), "--resume in the command")
        self._check()
        if self.runtime.world_size == 1:  # of several, setup_distributed says which each has
            self.callbacks.on_status(f"Training on {device_words(self.runtime.device)}")
        self.dataset, self.buckets = prepare_data(self.config, self.family)
        # read before the model is loaded: a caption that can't be read must not cost a caching
        texts = captions(self.dataset) if self.method.facts.uses_captions else [("",)] * len(self.dataset)
        check_placeholders(self.config, (text for several in texts for text in several))
        self._warn_of_disk(count_texts(self.config, self.dataset, texts))
        if self.runtime.is_main:
            self.run_folder.create()
        self._check_same("settings", lambda: settings_digest(self.config), "the files of its settings")
        self._check_same("pictures or captions", lambda: samples_digest(self.dataset, captions=texts), "the concepts")
        backup = self._earlier_state()
        for text in picture_warnings(self.config, self.dataset, learns_captions=self.method.facts.uses_captions):
            self._warn(text)
        self._open_model()
        self._cache(texts)
        self._attach_method()
        self._check_same("weights", lambda: weights_digest(self.base), "model.base")
        if not self.runtime.begin():  # before the first collective, in which a rank that has left would be missed
            self._end_start()
        self.runtime.while_waiting = lambda: None  # from here on the steps tell of a stop
        self._plan(backup)
        self._setup_engine(backup)
        self._add_actions()
        if self.runtime.is_main:  # last: a start that was refused leaves an earlier run's settings as they were
            self.run_folder.freeze_config(self.config)

    def train(self) -> None:
        """Runs to the last step, or until a stop is agreed."""
        self.callbacks.on_status(f"Training: {self.total_steps} steps of {self.global_batch} samples")
        if self.config.sampling.at_start and self.step == 0:
            self._together("sampling", self.sample)
        if self.step < self.total_steps:
            with closing(prefetch(self._steps(), self.config.data.prefetch_steps)) as steps:
                self.fit(steps)

    def end(self) -> None:
        """Backs up, saves and shows what was trained; before the job's next turn it only backs up."""
        # a signal may have reached some ranks only
        goes_on = self.stopped and any(self.runtime.gather(self.commands.requeues, "ending"))
        self.requeues = goes_on and self.runtime.is_main
        if self.config.backup.at_end or self.stopped:
            self._together("saving", partial(self._save_last, self._last_backup))
        if not goes_on:
            self._together("saving", partial(self._save_last, self._last_model))
        # after the model: what ends the run while pictures are made must not cost it
        if self.config.sampling.at_end and not self.stopped:
            self._together("sampling", self.sample)
        self._together("saving", partial(self._finish_saving, waits=not goes_on))

    # --- what is done between steps -------------------------------------------------------------------------------

    def backup(self) -> None:
        """Writes a backup in the background. If the last ones have failed, this one goes elsewhere and ends the run."""
        if not self.runtime.is_main:
            return
        try:
            self.backups.write(*self._backup_content())
        except TrainingError as error:
            self.saver.save(self._last_backup())
            if self.saver.has_away:
                self.saver.finish()
                text = str(error).rstrip(".")
                raise TrainingError(f"{text}: free some space there, then {resume_advice(self.run_folder)}.") from error

    def save(self) -> None:
        """Writes the model for other programs; with an average of the weights that, or both, as output.save_ema says.

        What can't be written is a warning; what could be stays.
        """
        if self.runtime.is_main:
            self.callbacks.on_status("Saving the model")
            name = self.models.unused_name(f"{safe_file_name(self.config.output.name)}-step{self.step:06d}")
            self.models.write(partial(self._write_model, name), self.step)

    def _write_model(self, name: str, folder: Path) -> list[Path]:
        metadata = {
            "trained_with": "Chorus",
            "family": self.family.name,
            "method": self.config.method,
            "steps": str(self.step),
        }
        paths = []
        for ending, averaged in self._model_versions().items():
            with self.weights_to_use(averaged):
                paths += self.method.save(self.base, self.config, folder, name + ending, metadata)
        return paths

    def _model_versions(self) -> dict[str, bool]:
        """Ending of the name -> whether it has the averaged weights."""
        asked = self.config.output.save_ema if self.ema else "averaged"
        return {"averaged": {"": True}, "plain": {"": False}, "both": {"": False, AVERAGED_ENDING: True}}[asked]

    def validate(self) -> None:
        """Measures the loss of the held-out samples, each rank its share; nothing that trains changes by it."""
        self.callbacks.on_status("Measuring the validation loss")
        loss = self._measure(averaged=False)
        ema_loss = self._measure(averaged=True) if self.ema else None
        if self.runtime.is_main:
            self.callbacks.on_validation(self.step, len(self.plan.validation_samples), loss, ema_loss)

    def _measure(self, averaged: bool) -> float:
        with self.weights_to_use(averaged), self._autocast():
            return self.validation.measure(self.model)

    def sample(self) -> None:
        """Makes the pictures of the sample settings from the weights as they are; each rank its share."""
        samples = SampleRound(self.config.sampling, self.base, self.runtime, self.callbacks, self.commands)
        samples.make(self.run_folder.samples_dir / f"step-{self.step:09d}", self.step, self._weights_to_sample())

    @contextmanager
    def _weights_to_sample(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(self.weights_to_use(averaged=self.config.ema.sample))
            for name in self.family.denoisers:
                stack.enter_context(lower_precision(self.base.module(name), self._autocast))
            yield

    # --- what stays at the end ------------------------------------------------------------------------------------

    def _save_last(self, make: Callable[[], LastSave]) -> None:
        if self.runtime.is_main:
            self.backups.close()
            self.saver.save(make())

    def _last_backup(self) -> LastSave:
        # what else could a run that was stopped be resumed from
        return self.backups.last_save(*self._backup_content(), fails_run=self.stopped)

    def _last_model(self) -> LastSave:
        self.callbacks.on_status("Saving the model")
        name = self.models.unused_name(safe_file_name(self.config.output.name))
        num_bytes = len(self._model_versions()) * self.method.saved_bytes(self.base, self.config)
        return self.models.last_save(partial(self._write_model, name), self.step, num_bytes)

    def _finish_saving(self, waits: bool) -> None:
        """Waits for room for what is not where it belongs. A stop that any rank is asked for meanwhile ends that."""

        def announce_stop() -> None:
            if self.commands.stopping and not self.stopped:
                self.runtime.announce_stop()

        def is_over() -> bool:
            return not self.stopped and (self.commands.stopping or self.runtime.stop_announced)

        self.runtime.while_waiting = announce_stop  # of the other ranks, which have nothing to save
        if not self.runtime.is_main:
            return
        if waits:
            self.saver.wait(is_over, self.runtime.heartbeat.beat)
        elif self.saver.has_away:
            raise TrainingError(  # else the job would come back for ever to do the same steps
                f"The job is not queued again, for its backup could not be written to {self.run_folder.backup_dir}: "
                "free some space there, then submit its script with --resume."
            )
        self.saver.finish()

    # --- start, in its order --------------------------------------------------------------------------------------

    def _check(self) -> None:
        self.base_info, warnings = check_start(self.config, self.runtime.world_size, self.resume)
        for text in warnings:
            self._warn(text)
        check_precision(self.config.model, self.runtime.device)
        if self.compiles:
            check_compiler(self.runtime.device)

    def _warn_of_disk(self, num_texts: int) -> None:
        for need in disk_needs(self.config, self.family, self.base_info, self.dataset, self.buckets, num_texts):
            if need.warning:
                self._warn(need.warning)

    def _earlier_state(self) -> Backup | None:
        """The backup to go on from. A folder that holds a run is never started over: its work would be mixed up."""
        if not self.resume:
            if self.runtime.is_main:
                self.run_folder.refuse_earlier_run()
            return None
        backup = newest_backup(self.backups, self.runtime)
        if backup is None:
            self._warn(f"There is no backup in {self.run_folder.backup_dir}: training starts at step 0.")
            check_shares(self.config, self.runtime.world_size)
        return backup

    def _open_model(self) -> None:
        self.callbacks.on_status("Opening the model")
        self.base = BaseModel(self.family, self.config.model, self.runtime.device, self.runtime.loading_turn)
        self.parts = trained_in(self.method, self.base, self.config)
        check_parts(self.config, self.parts)  # again: the base may go without a part of its family
        # before anything is cached
        check_layers(self.method, self.base, self.parts, self.config)
        if self.method.facts.uses_denoiser:
            check_prediction(self.family, self.base.pipe.scheduler.config)
        self.text_trains = any(part in self.family.text.encoders for part in self.parts)

    def _cache(self, texts: list[tuple[str, ...]]) -> None:
        """Encodes what is missing in the caches and makes the source of batches. texts: the captions of each sample."""
        encoder = Encoder(
            self.base,
            self.dataset,
            self.buckets,
            Path(os.path.expanduser(self.config.cache_dir)),
            self.runtime,
            self.config.distributed_data_loading,
            self._progress,
            self._tell,
        )
        takes_latents = self.method.facts.uses_denoiser
        if not takes_latents:
            self.base.require(self.family.vae)
        pictures = encoder.latents() if takes_latents else encoder.pixels()
        self.unusable = encoder.unusable
        check_unusable(self.dataset, self.unusable, self.config.data.max_unreadable_share)
        reasons = {self.dataset.paths[sample]: reason for sample, reason in self.unusable.items()}
        for path, reason in reasons.items():
            self._warn(f"{path} is left out: {reason}.")
        caches_text = takes_latents and not self.text_trains
        variants = self.config.data.caption_variants if caches_text else None
        caption_source = CaptionSource(self.dataset, texts, self.config.seed, variants)
        self.source = SampleSource(
            dataset=self.dataset,
            buckets=self.buckets,
            pictures=pictures,
            captions=caption_source,
            text=encoder.text(caption_source.all_texts()) if caches_text else None,
            caption_dropout=self.config.data.caption_dropout,
            seed=self.config.seed,
            dtype=torch.promote_types(self.base.dtype, torch.float32),
            sizes=takes_latents and self.family.takes_sizes,
            **(self._noise_options() if takes_latents else {}),
        )

    def _noise_options(self) -> dict[str, Any]:
        """What a source of batches for a denoiser needs to know."""
        return {
            "diffusion": self.config.diffusion,
            "loss": self.config.loss,
            "timesteps": timesteps_of(self.family, self.base.pipe.scheduler.config, self.config.diffusion),
            "zero_unconditional": is_unconditional_zero(self.base.pipe),
            "collate": partial(collate_text, self.family.text),
        }

    def _attach_method(self) -> None:
        """Loads what a step needs; after the caching, so that encoders and denoiser are not in memory together."""
        denoisers = self.family.denoisers if self.method.facts.uses_denoiser else ()
        encoders = self.family.text_components if self.text_trains else ()
        present = [name for name in (*denoisers, *encoders) if name in self.base.component_names]
        self.callbacks.on_status("Loading the model")
        with must_fit("the model"):
            self.base.require(*self.parts, *present)
        torch.manual_seed(torch_seed(self.config.seed, "initialisation"))
        self.method.attach(self.base, self.config)
        self.method.check_output(self.base, self.config)
        if self.compiles:
            self.slowest_step_seconds = COMPILING_SECONDS
            for name in set(denoisers).intersection(present):
                compile_blocks(self.base.module(name))

    def _plan(self, backup: Backup | None) -> None:
        """Sizes of the run. A resumed run keeps its global batch and learning-rate factor on any number of ranks."""
        run = backup.data["run"] if backup else {}
        ranks = self.runtime.world_size
        wanted = global_batch(self.config, ranks)
        self.global_batch = run.get("global_batch", wanted)
        if self.global_batch != wanted:
            self._warn(f"batch_size: the run goes on with the {self.global_batch} samples per step of its backup.")
        check_divides(self.global_batch, ranks)
        self.accumulation = accumulation_steps(self.config, ranks, self.global_batch)
        self.plan = RunPlan(self.dataset, self.buckets, self.unusable, self.config.seed, self.global_batch)
        if not self.plan.num_samples:
            raise DataError("concepts: their repeats leave no sample in an epoch; raise concepts.N.repeats.")
        if run and run["samples"] != samples_digest(self.dataset, self.unusable):
            self._warn("The pictures have changed since the backup: the current epoch is planned anew.")

    def _setup_engine(self, backup: Backup | None) -> None:
        planned = self.plan.steps_per_epoch * self.config.epochs
        total = min(planned, self.config.max_steps or planned)
        for text in step_warnings(self.config, self.plan.num_samples, self.global_batch, total):
            self._warn(text)
        loss = self.method.loss(self.base, self.config)
        if backup:
            self.learning_rate_factor = backup.data["learning_rate_factor"]
        elif scaling := describe_scaling(self.config, self.runtime.world_size):
            self.callbacks.on_status(scaling)
        self.setup(
            loss,
            lambda model, batch: model(batch.to(self.runtime.device)),
            total_steps=total,
            groups=param_groups(self.base, self.parts, self.plan.steps_per_epoch, total),
            unused_parameters=loss.unused_parameters,
        )
        if backup:
            self.load_state(backup.tensors, backup.data)
            self.callbacks.on_status(f"Resumed at step {self.step} from {backup.path.name}")

    def _add_actions(self) -> None:
        sampling, backup, output = self.config.sampling, self.config.backup, self.config.output
        if self.runtime.world_size > 1:
            self.actions["check"] = Action(Trigger(self.config.check_ranks_every, "steps"), self._check_ranks)
        if self.config.validation.unit != "never" and len(self.plan.validation_samples):
            trigger = Trigger(self.config.validation.every, self.config.validation.unit)
            self.actions["validate"] = Action(trigger, self.validate, "sampling")
            self.validation = self._validation_loss()
        if text := none_held_out(self.config, len(self.plan.validation_samples)):
            self._warn(text)
        self.actions["sample"] = Action(Trigger(sampling.every, sampling.unit), self.sample, "sampling")
        self.actions["save"] = Action(Trigger(output.every, output.unit), self.save)
        self.actions["backup"] = Action(Trigger(backup.every, backup.unit), self.backup)

    def _validation_loss(self) -> ValidationLoss:
        ranks = (self.runtime.rank, self.runtime.world_size)
        batch_size = max(1, self.global_batch // (self.runtime.world_size * self.accumulation))
        return ValidationLoss(
            replace(self.source, caption_dropout=0.0),
            self.plan.validation(*ranks, batch_size),
            self.config.validation.timesteps if self.method.facts.uses_denoiser else 1,
            self.runtime,
        )

    # --- helpers --------------------------------------------------------------------------------------------------

    def _steps(self) -> Iterator[Step]:
        """This rank's part of every step from where the run stands to its end."""
        pin = self.runtime.device.type == "cuda"
        ranks = (self.runtime.rank, self.runtime.world_size)
        planned = self.plan.steps(self.epoch, self.step_in_epoch, *ranks, self.accumulation)
        for step in islice(planned, self.total_steps - self.step):
            batches = [self.source.batch(micro_batch, step.epoch) for micro_batch in step.micro_batches]
            padding = not step.micro_batches[0].real
            batches = [batch.pinned() for batch in batches] if pin else batches
            yield Step(batches, step.epoch, step.index, step.ends_epoch, padding)

    def _backup_content(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        tensors, data = self.state()
        return tensors, {**data, "run": self._run_state()}

    def _run_state(self) -> dict[str, Any]:
        return {"global_batch": self.global_batch, "samples": samples_digest(self.dataset, self.unusable)}

    def _progress(self, text: str) -> None:
        """Tells how far the start is, and ends it where a stop was asked for; what is cached stays."""
        self._end_where_asked()
        self._tell(text)

    def _end_where_asked(self) -> None:
        if self.commands.stopping:
            self.runtime.veto_start(self.commands.requeues)
        if self.runtime.start_vetoed:
            self._end_start()

    def _end_start(self) -> NoReturn:
        if self.runtime.start_decision == REQUEUE:  # the signal may have reached another rank only
            self.commands.requeue()
        raise StopRequested

    def _warn(self, text: str) -> None:
        """Of what every rank knows alike: once."""
        if self.runtime.is_main:
            self.callbacks.on_warning(text)

    def _check_ranks(self) -> None:
        self._check_same("trained weights", lambda: checksum(self.trainable), "the memory of its device")

    def _check_same(self, what: str, digest: Callable[[], str], where: str) -> None:
        check_same(self.runtime, self.step, what, digest, where)

    def _tell(self, text: str) -> None:
        """A status at most once a second: caching tells of every few pictures."""
        if time.monotonic() - self._last_progress >= 1:
            self._last_progress = time.monotonic()
            self.callbacks.on_status(text)


def engine_settings(config: TrainConfig, num_ranks: int) -> EngineSettings:
    return EngineSettings(
        optimizer=config.optimizer,
        schedule=config.schedule,
        ema=config.ema,
        mixed_precision=config.model.mixed_precision,
        seed=config.seed,
        learning_rate_factor=learning_rate_factor(config, num_ranks),
    )
