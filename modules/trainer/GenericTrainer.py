"""Trains a diffusion model: prepares the run, runs the loop, samples, backs up and saves.

trainer = GenericTrainer(config, callbacks, commands)
trainer.start()
trainer.train()
trainer.end()
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from modules.config.clips import clip_fps
from modules.config.counted import counted
from modules.data.holdout import no_validation_warning
from modules.data.prefetch import prefetch
from modules.distributed.Runtime import Runtime, default_device
from modules.machine.devices import is_gpu
from modules.methods.registry import METHODS
from modules.sampling.generation import autocast_denoiser
from modules.sampling.SampleRound import SampleRound
from modules.session.backups import resume_advice
from modules.session.following import is_complete
from modules.session.ModelRecord import AVERAGED_ENDING
from modules.session.names import safe_file_name
from modules.session.RunFolder import RunFolder
from modules.session.samples_left import note_samples_left, samples_left
from modules.session.TrainCallbacks import TrainCallbacks
from modules.session.TrainCommands import TrainCommands
from modules.trainer.Action import Action
from modules.trainer.attach_method import compiles
from modules.trainer.BackupRanks import BackupRanks
from modules.trainer.BackupStore import BackupStore
from modules.trainer.capturing import graphs_for
from modules.trainer.compiling import COMPILING_SECONDS, compile_with
from modules.trainer.FallbackFolders import FallbackFolders
from modules.trainer.FallbackSaver import FallbackSaver
from modules.trainer.FinalSave import FinalSave
from modules.trainer.LoopOptimizer import ScheduledOptimizer
from modules.trainer.LoopSettings import SLOWEST_STEP_SECONDS, LoopSettings
from modules.trainer.ModelStore import ModelStore
from modules.trainer.param_groups import param_groups
from modules.trainer.prepare_run import prepare_run
from modules.trainer.PreparedRun import PreparedRun
from modules.trainer.rank_checks import check_same, is_shared
from modules.trainer.StartProgress import StartProgress
from modules.trainer.Step import Step
from modules.trainer.TrainingError import TrainingError
from modules.trainer.TrainingLoop import TrainingLoop
from modules.trainer.Trigger import Trigger
from modules.trainer.validation_loss import ValidationLoss
from modules.weights.checksum import checksum

if TYPE_CHECKING:
    from torch import Tensor

    from modules.config.TrainConfig import TrainConfig
    from modules.methods.max_norm import MaxNorm
    from modules.trainer.checks import CheckedStart

EnterVersion = Callable[[], AbstractContextManager[None]]


class GenericTrainer:
    """A run of `config` in its run folder. resume: continue from the newest good backup there.
    checked: as for `prepare_run`.

    `start`, `train` and `end` raise UserError, with a one-sentence message, for problems that the user can fix. With
    several ranks, each calls all three; messages about the run as a whole come from rank 0 only.
    After `start`, `prepared` holds everything the run was prepared with, and `loop` trains it.
    """

    def __init__(
        self,
        config: TrainConfig,
        callbacks: TrainCallbacks | None = None,
        commands: TrainCommands | None = None,
        runtime: Runtime | None = None,
        resume: bool = False,
        checked: CheckedStart | None = None,
    ):
        self.config = config
        self.callbacks = callbacks or TrainCallbacks()
        self.commands = commands or TrainCommands()
        self.runtime = runtime or Runtime(default_device(config.device_indexes))
        self.resume = resume
        self._checked = checked
        self.requeues = False  # whether this rank must have SLURM requeue the job
        self.method = METHODS[config.method]
        self.run_folder = RunFolder(config.workspace_dir)
        self.backups = BackupStore(
            self.run_folder.backup_dir, config.backup.keep, self.callbacks.on_backup, self.callbacks.on_warning
        )
        self.models = ModelStore(
            self.run_folder, self.callbacks.on_saved, self.callbacks.on_warning, config.output.keep
        )
        self.saver = FallbackSaver(self.run_folder, config.output, self.callbacks)
        self._is_complete = False  # whether a resumed run had nothing left to do
        self._sampled_step = -1  # at which samples were made last
        self._samples_left: list[int] = []  # of them, what a stop has left out; see SampleRound.make
        self._prepared: PreparedRun | None = None
        self._loop: TrainingLoop | None = None

    @property
    def prepared(self) -> PreparedRun:
        if self._prepared is None:
            raise RuntimeError("The trainer has not been started: call start() first.")
        return self._prepared

    @property
    def loop(self) -> TrainingLoop:
        if self._loop is None:
            raise RuntimeError("The trainer has not been started: call start() first.")
        return self._loop

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return self.loop.step

    @property
    def stopped(self) -> bool:
        """Whether the run was stopped on request before its last step."""
        return self.loop.stopped and self.step < self.loop.total_steps

    def start(self) -> None:
        """Prepares the run up to its first step: checks, model, caches, plan, optimizer and, to resume, the backup."""
        progress = StartProgress(self.runtime, self.callbacks, self.commands)
        self.runtime.on_wait = progress.raise_if_stop_requested
        # Affects CUDA only; `torch.set_float32_matmul_precision` would change CPUs as well. Not set with the newer
        # `fp32_precision`, after which torch 2.13's compiler can no longer read these flags.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.config.model.tf32
        run = prepare_run(self.config, self.runtime, self.callbacks, progress, self.backups, self.resume, self._checked)
        if not self.runtime.begin():  # before the first collective, which would hang if a rank has left
            progress.raise_stop()
        self.runtime.on_wait = lambda: None  # from now on, each step exchanges stop requests
        for text in run.step_warnings:
            progress.warn(text)
        self._prepared, self._loop = run, self._make_loop(run)
        in_parts = self.runtime.shards or self._loop.optimizer.divided is not None
        if in_parts and is_shared(self.runtime, self.run_folder.path):
            fallback = FallbackFolders(self.run_folder.path, self.config.output.fallback_dir)
            self.backups.ranks = BackupRanks(self.runtime, [self.backups.folder, *fallback.parents()])
        if run.backup:
            self._loop.load_state(run.backup.tensors, run.backup.data)
            self._samples_left = run.backup.data.get("samples_left", [])  # old backups have none
            self.callbacks.on_status(f"Resumed at step {self.step} from {run.backup.path.name}")
            if self.step >= self.loop.total_steps:
                found = is_complete(self.run_folder, self.step), samples_left(self.run_folder, self.step)
                self._is_complete, left = self.runtime.broadcast(found, "resuming")
                # the backup does not know of the last samples
                self._samples_left = left if self._is_complete else left or self._samples_left
        self._add_actions()
        if warning := no_validation_warning(self.config, len(run.plan.validation_samples)):
            progress.warn(warning)
        if self.runtime.is_main:  # last, so that a failed start does not overwrite the settings of an earlier run
            self.run_folder.freeze_config(self.config)

    def train(self) -> None:
        """Trains to the last step, or until the ranks agree to stop."""
        loop = self.loop
        if self._is_complete and not self._samples_left:
            text = f"Nothing is left to do: the run finished at step {self.step}; raise max_steps or epochs to train on"
            self.callbacks.on_status(text)
            return
        if not self._is_complete:
            batch = counted(self.prepared.global_batch, "sample")
            self.callbacks.on_status(f"Training: {counted(loop.total_steps, 'step')} of {batch}")
        if self._samples_left:
            loop.run_on_all_ranks("sampling", partial(self.sample, self._samples_left))
        elif self.config.sampling.at_start and loop.step == 0:
            loop.run_on_all_ranks("sampling", self.sample)
        if loop.step < loop.total_steps and not loop.stopped:
            self._compile()
            loop.graphs = graphs_for(self.prepared, loop, self.callbacks)
            with closing(prefetch(self._steps(), self.config.data.prefetch_steps)) as steps:
                loop.fit(steps)

    def _compile(self) -> None:
        """Compiles, before the first step, what one graph of a block is for all sizes."""
        run = self.prepared
        if run.compiled_first:
            self.callbacks.on_status("Compiling the blocks for all image sizes")
            with self.runtime.heartbeat.phase("training"):
                compile_with(self.loop, (run.source.batch(batch, 0) for batch in run.compiled_first))

    def end(self) -> None:
        """Writes the final backup and model and makes the final samples; before a requeue, only writes the backup.

        A finished run that was resumed with no step left has all of these already, but for samples that a stop has left
        out.
        """
        if self._is_complete:
            self._note_samples_left()
            return
        # the signal may have reached only some of the ranks
        requeues = self.stopped and any(self.runtime.gather(self.commands.requeues, "ending"))
        self.requeues = requeues and self.runtime.is_main
        if self.config.backup.at_end or self.stopped:
            self.loop.run_on_all_ranks("saving", self._save_final_backup)
        if not requeues:
            self.loop.run_on_all_ranks("saving", self._save_final_model)
        # after the model, which must not be lost if sampling fails
        if self.config.sampling.at_end and self._sampled_step != self.step:
            if not self.loop.stopped:
                self.loop.run_on_all_ranks("sampling", self.sample)
            elif not self.stopped:  # asked to in its last step
                samples = self.prepared.sampling.samples
                self._samples_left = list(range(sum(sample.count for sample in samples if sample.enabled)))
        self._note_samples_left()
        self.loop.run_on_all_ranks("saving", partial(self._finish_saving, waits=not requeues))
        self.backups.release()

    def _note_samples_left(self) -> None:
        """Of a finished run, whose backup is made before its last samples; that of any other says it."""
        if self.stopped or not self.runtime.is_main:
            return
        try:
            note_samples_left(self.run_folder, self.step, self._samples_left)
        except OSError as error:
            path = self.run_folder.samples_left_path
            self.callbacks.on_warning(f"{path} can't be written ({error.strerror}): samples that are missing stay so.")

    # --- actions between steps ------------------------------------------------------------------------------------

    def backup(self) -> None:
        """Writes a backup in the background. After repeated failures, saves it elsewhere and ends the run."""
        content = self._backup_content()
        if not self.runtime.is_main and not self.backups.ranks:
            return
        try:
            self.backups.write(*content)
        except TrainingError as error:
            self.saver.save(self.backups.final_save(*content, fails_run=False))
            if self.saver.has_misplaced:
                self.saver.finish()
                text = str(error).rstrip(".")
                raise TrainingError(f"{text}: free some space there, then {resume_advice(self.run_folder)}.") from error

    def save(self) -> None:
        """Saves the model for other programs, with the weights that output.save_ema selects if there is an EMA.

        Files that can't be written are a warning; the others stay.
        """
        versions = self._full_versions()
        if self.runtime.is_main:
            self.callbacks.on_status("Saving the model")
            name = safe_file_name(self.config.output.name)
            self.models.write(partial(self._write_model, versions), name, self.step)

    def _full_versions(self) -> Mapping[str, EnterVersion]:
        """Ending of the file name -> a context in which rank 0 can save that version of the full model.

        All ranks must call it. If a rank holds the full weights itself, they are used as they are when it is entered.
        """
        run = self.prepared
        versions: dict[str, EnterVersion] = {}
        for ending, averaged in self._model_versions().items():
            enter = partial(self.loop.inference_weights, averaged)
            with enter():
                trained = {name: run.base.module(name) for name in run.parts}
                copies = self.runtime.full_copies(trained, with_frozen=self.method.facts.trains_weights)
            versions[ending] = partial(run.base.replaced, copies) if copies else enter
        return versions

    def _write_model(self, versions: Mapping[str, EnterVersion], name: str, folder: Path) -> list[Path]:
        base = self.prepared.base
        metadata = {
            "trained_with": "Chorus",
            "family": base.family.name,
            "method": self.config.method,
            "steps": str(self.step),
        }
        paths = []
        for ending, enter in versions.items():
            with enter():
                paths += self.method.save(base, self.config, folder, name + ending, metadata)
        return paths

    def _model_versions(self) -> dict[str, bool]:
        """Ending of the file name -> whether the file has the averaged weights."""
        choice = self.config.output.save_ema if self.loop.ema else "averaged"
        return {"averaged": {"": True}, "plain": {"": False}, "both": {"": False, AVERAGED_ENDING: True}}[choice]

    def validate(self, validation: ValidationLoss) -> None:
        """Measures the loss of the validation samples, split over the ranks; leaves weights and buffers unchanged."""
        self.callbacks.on_status("Measuring the validation loss")
        loss = self._measure(validation, averaged=False)
        ema_loss = self._measure(validation, averaged=True) if self.loop.ema else None
        if self.runtime.is_main:
            self.callbacks.on_validation(self.step, len(self.prepared.plan.validation_samples), loss, ema_loss)

    def _measure(self, validation: ValidationLoss, averaged: bool) -> float:
        with self.loop.inference_weights(averaged), self.loop.autocast():
            return validation.measure(self.prepared.loss)

    def sample(self, only: Collection[int] | None = None) -> None:
        """Generates the configured sample images with the current weights, split over the ranks.

        only: as in SampleRound. A stop request in between stops the training at this step, with the weights of which a
        resumed run makes the rest.
        """
        run = self.prepared
        samples = SampleRound(
            run.sampling,
            run.sample_prompts,
            self.runtime,
            self.callbacks,
            self.commands,
            clip_fps(self.config),
            self.run_folder,
            only,
        )
        folder = self.run_folder.samples_dir / f"step-{self.step:09d}"
        self._samples_left = samples.make(folder, self.step, self._weights_to_sample)
        self._sampled_step = self.step
        if self._samples_left:
            self.loop.stop_if_asked()

    @contextmanager
    def _weights_to_sample(self) -> Iterator[None]:
        base = self.prepared.base
        with ExitStack() as stack:
            stack.enter_context(self.loop.inference_weights(averaged=self.config.ema.sample))
            base.require(*base.family.denoisers)  # the expert that does not train may not be loaded yet
            for name in base.family.denoisers:
                stack.enter_context(autocast_denoiser(base.module(name), self.loop.autocast))
            if self.prepared.training_adapter:
                stack.enter_context(self.prepared.training_adapter.left_out())
            yield

    # --- final saves ----------------------------------------------------------------------------------------------

    def _save_final_backup(self) -> None:
        content = self._backup_content()
        # a stopped run can't be resumed without it
        make = partial(self.backups.final_save, *content, fails_run=self.stopped)
        if self.backups.ranks and not self.runtime.is_main:
            make()
        self._save_finally(make)

    def _save_final_model(self) -> None:
        versions = self._full_versions()
        self._save_finally(lambda: self._final_model(versions))

    def _save_finally(self, make: Callable[[], FinalSave]) -> None:
        if self.runtime.is_main:
            self.backups.close()
            self.saver.save(make())

    def _final_model(self, versions: Mapping[str, EnterVersion]) -> FinalSave:
        self.callbacks.on_status("Saving the model")
        title = safe_file_name(self.config.output.name)
        num_bytes = len(versions) * self.method.saved_bytes(self.prepared.base, self.config)
        write = partial(self._write_model, versions)
        return self.models.final_save(write, title, self.step, num_bytes, finished=not self.stopped)

    def _finish_saving(self, waits: bool) -> None:
        """Waits for disk space for saves that are not at their destination, until a stop request on any rank."""

        def announce_stop() -> None:
            if self.commands.stopping and not self.loop.stopped:
                self.runtime.announce_stop()

        def is_over() -> bool:
            # a stop that came during training, perhaps with the last step, has been served
            return not self.loop.stopped and (self.commands.stopping or self.runtime.stop_announced)

        self.runtime.on_wait = announce_stop  # for the other ranks, which only wait
        if not self.runtime.is_main:
            return
        if waits:
            self.saver.wait(is_over, self.runtime.heartbeat.beat)
        elif self.saver.has_misplaced:
            raise TrainingError(  # otherwise the job would repeat the same steps for ever
                f"The job is not requeued because its backup could not be written to {self.run_folder.backup_dir}: "
                "free some space there, then submit its script with --resume."
            )
        self.saver.finish()

    # --- building the loop ----------------------------------------------------------------------------------------

    def _make_loop(self, run: PreparedRun) -> TrainingLoop:
        config = self.config

        def make_optimizer(trainable: dict[str, torch.nn.Parameter]) -> ScheduledOptimizer:
            rate_factor = partial(self.method.rate_factor, config=config)
            groups = param_groups(run.base, run.parts, run.steps_until, run.total_steps, rate_factor)
            limit = self.method.norm_limit(run.base, config)
            return ScheduledOptimizer(
                config.optimizer,
                config.schedule,
                groups,
                run.total_steps,
                config.seed,
                run.learning_rate_factor,
                partial(self._limit_norms, limit) if limit else None,
                self.runtime.divide_updates(list(trainable.values())),
            )

        return TrainingLoop(
            run.loss,
            lambda model, batch: model(batch.to(self.runtime.device)),
            make_optimizer,
            run.total_steps,
            LoopSettings(
                max_grad_norm=config.optimizer.max_grad_norm,
                ema=config.ema,
                mixed_precision=config.model.mixed_precision,
                seed=config.seed,
                fused_backward=config.optimizer.fused_backward and self.method.facts.trains_weights,
                slowest_step_seconds=COMPILING_SECONDS if compiles(config) else SLOWEST_STEP_SECONDS,
            ),
            self.runtime,
            self.callbacks,
            self.commands,
            unused_parameters=run.loss.unused_parameters,
        )

    def _limit_norms(self, limit: MaxNorm) -> None:
        # rank 0's ratios on all ranks: another GPU model may compute norms that differ in the last bit
        ratios = limit.ratios() * float(self.runtime.is_main)
        limit.apply(self.runtime.sum(ratios, ratios.new_zeros(()))[0])

    def _add_actions(self) -> None:
        sampling, backup, output = self.config.sampling, self.config.backup, self.config.output
        actions = self.loop.actions
        if self.runtime.world_size > 1:
            actions["check"] = Action(Trigger(self.config.check_ranks_every, "steps"), self._check_ranks)
        if self.config.validation.unit != "never" and len(self.prepared.plan.validation_samples):
            trigger = Trigger(self.config.validation.every, self.config.validation.unit)
            actions["validate"] = Action(trigger, partial(self.validate, self._validation_loss()), "sampling")
        actions["sample"] = Action(Trigger(sampling.every, sampling.unit), self.sample, "sampling")
        actions["save"] = Action(Trigger(output.every, output.unit), self.save)
        actions["backup"] = Action(Trigger(backup.every, backup.unit), self.backup)

    def _validation_loss(self) -> ValidationLoss:
        run, ranks = self.prepared, (self.runtime.rank, self.runtime.world_size)
        batch_size = max(1, run.global_batch // (self.runtime.world_size * run.accumulation))
        return ValidationLoss(
            replace(run.source, caption_dropout=0.0),
            run.plan.validation(*ranks, batch_size, self.runtime.shards),
            run.plan.validation(0, 1, 1)[0],
            self.config.validation.timesteps if self.method.facts.uses_denoiser else 1,
            self.runtime,
        )

    def _steps(self) -> Iterator[Step]:
        """This rank's part of every remaining step."""
        run, loop = self.prepared, self.loop
        pin = is_gpu(self.runtime.device)
        ranks = (self.runtime.rank, self.runtime.world_size)
        planned = run.plan.steps(loop.epoch, loop.step_in_epoch, *ranks, run.accumulation, self.runtime.shards)
        for step in islice(planned, loop.total_steps - loop.step):
            batches = [run.source.batch(micro_batch, step.epoch) for micro_batch in step.micro_batches]
            padding = not step.micro_batches[0].real
            batches = [batch.pinned() for batch in batches] if pin else batches
            kinds = [micro_batch.kind for micro_batch in step.micro_batches]
            yield Step(batches, step.epoch, step.index, step.ends_epoch, padding, kinds, step.num_passes)

    def _backup_content(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """(tensors, plain data) of a backup. All ranks must call it."""
        run = self.prepared
        tensors, data = self.loop.state(in_parts=self.backups.ranks is not None)
        data["learning_rate_factor"] = run.learning_rate_factor
        data["run"] = {"global_batch": run.global_batch, "samples": run.data_digest}
        data["samples_left"] = self._samples_left
        return tensors, data

    def _check_ranks(self) -> None:
        tensors = self.runtime.replicated(dict(self.loop.trainable))
        check_same(self.runtime, self.step, "trained weights", lambda: checksum(tensors), "the memory of its device")
