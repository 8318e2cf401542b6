"""One training of TrainingEngine: what a call of `train` does, from its first step to its last checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from modules.config.EmaConfig import EmaConfig
from modules.config.errors import UserError
from modules.distributed.Runtime import Runtime
from modules.engine.batches import to_device
from modules.engine.callbacks import logging_to, told_of_failure
from modules.engine.EngineCheckpoints import EngineCheckpoints, load_model
from modules.engine.EngineCommands import EngineCommands, stopping_on_ctrl_c
from modules.engine.EpochTotals import EpochTotals
from modules.engine.evaluation import inference_mode, measure
from modules.engine.ExtraState import EXTRA, ExtraState
from modules.engine.History import History
from modules.engine.loading import mark_last, step_source
from modules.engine.ManualLoop import ManualLoop
from modules.engine.NamedOptimizers import NamedOptimizers, adapted
from modules.engine.RankContext import rank_context
from modules.engine.same_ranks import check_same_weights
from modules.engine.TopCheckpoints import Score
from modules.engine.TrainArguments import TrainArguments
from modules.session.backups import ENGINE
from modules.session.printing import print_line
from modules.session.TrainCallbacks import CallbackList
from modules.trainer.Action import Action
from modules.trainer.BackupStore import Backup
from modules.trainer.heap import keep_freed_memory
from modules.trainer.LoopSettings import LoopSettings
from modules.trainer.Step import Step
from modules.trainer.TrainingLoop import TrainingLoop
from modules.trainer.Trigger import Trigger

REMEDY_FOR_NAN = "lower the optimizer's lr, or pass use_amp=False"


@dataclass(frozen=True)
class EngineParts:
    """What all trainings of an engine share. model: on the runtime's device. folder: of everything that is written.

    in_ram: whether large tensors of the optimizer's state are in system memory between steps.
    """

    model: nn.Module
    runtime: Runtime
    folder: Path
    checkpoints: EngineCheckpoints
    precision: Literal["no", "bf16", "fp16"]
    ema: EmaConfig
    seed: int
    in_ram: bool = False


class Training:
    """Trains as `arguments` say. First `begin`, then `run`; all ranks must make the same calls.

    listeners: hear of it. commands: may ask it to stop.
    Raises UserError for arguments that can't work.
    """

    def __init__(
        self, parts: EngineParts, arguments: TrainArguments, listeners: CallbackList, commands: EngineCommands
    ):
        arguments.check(parts.model, parts.in_ram)
        self._parts, self._arguments, self._listeners, self._commands = parts, arguments, listeners, commands
        self.task = arguments.task(parts.runtime.device)
        self.history = History()
        self._monitor = arguments.monitored()
        self._totals = EpochTotals()
        self._since_validation = EpochTotals()  # with `validate_every_steps`
        self._optimizer = adapted(
            arguments.optimizer,
            arguments.scheduler,
            arguments.scheduler_interval,
            parts.model,
            parts.runtime,
            parts.in_ram,
        )
        self._source = step_source(arguments.train_loader, parts.runtime, arguments.accumulation, parts.seed)
        self._loop = self._make_loop()
        self._extra = ExtraState(arguments.extra_state, parts.runtime, listeners.on_warning)
        self._has_compared = False  # the weights of the ranks

    def _make_loop(self) -> TrainingLoop:
        parts, arguments = self._parts, self._arguments
        totals = [self._totals, *([self._since_validation] if arguments.validate_every_steps else [])]
        make = ManualLoop if isinstance(self._optimizer, NamedOptimizers) else TrainingLoop
        loop = make(
            parts.model,
            self._step,
            lambda params: self._optimizer,
            arguments.total_steps(self._source.num_batches()),
            LoopSettings(
                arguments.clip_grad_norm or 0.0, parts.ema, parts.precision, parts.seed, remedy_for_nan=REMEDY_FOR_NAN
            ),
            parts.runtime,
            CallbackList([*totals, self._listeners]),
            self._commands,
            unused_parameters=arguments.unused_parameters,
        )
        if arguments.validate_every_steps:
            trigger = Trigger(arguments.validate_every_steps, "steps")
            loop.actions["validate"] = Action(trigger, self._validate_within_epoch, "sampling")
        if arguments.save_every_steps:
            loop.actions["save"] = Action(Trigger(arguments.save_every_steps, "steps"), self._save_within_epoch)
        return loop

    def backward(self, loss: Tensor, name: str, samples: int | None, retain_graph: bool) -> None:
        """See `TrainingEngine.backward`."""
        if not isinstance(self._loop, ManualLoop):
            raise UserError(
                f"engine.backward: it is for optimizers that train gets by name; pass optimizer={{{name!r}: ...}}."
            )
        self._loop.backward(loss, name, samples, retain_graph)

    def begin(self, loaded: Backup | None) -> None:
        """Starts anew, or from the checkpoint that `resume` names, or from `loaded`."""
        if self._parts.runtime.device.type == "cpu":
            keep_freed_memory()
        checkpoints, resume = self._parts.checkpoints, self._arguments.resume
        backup = checkpoints.load(resume) if resume else loaded
        if backup is None:
            checkpoints.start_fresh()
        else:
            self._continue_from(backup)
        if self._parts.runtime.shards or self._optimizer.divided:
            checkpoints.divide()

    def run(self) -> None:
        """Trains to the last epoch or step, or until it is asked to stop."""
        with logging_to(self._parts.folder, self._listeners, resumes=self._loop.step > 0):
            self._run()
            self._listeners.on_finished(self._loop.step)

    def _run(self) -> None:
        loop, arguments, checkpoints = self._loop, self._arguments, self._parts.checkpoints
        with ExitStack() as stack:
            stack.callback(checkpoints.close)
            if arguments.save_last and self._parts.runtime.world_size == 1:
                stack.enter_context(stopping_on_ctrl_c(self._commands))
            stack.enter_context(told_of_failure(self._listeners))
            self._listeners.on_started(time.time())
            while not (arguments.is_over(loop.epoch, loop.step) or loop.stopped):
                if not self._train_epoch():  # it ended before the epoch
                    break
                self._end_epoch()
                loop.stop_if_asked()
            if arguments.has_all_steps(loop.step) and loop.step_in_epoch:
                self._cut_epoch_off()
            elif loop.stopped and loop.step_in_epoch and arguments.save_last:
                self._save_last()
            self.history.stopped = loop.stopped and not arguments.is_over(loop.epoch, loop.step)
            rank_context().step, rank_context().stopped = loop.step, self.history.stopped
            self._parts.runtime.barrier("saving")

    # --- an epoch -------------------------------------------------------------------------------------------------

    def _train_epoch(self) -> bool:
        """Whether the epoch was trained to its end, rather than ended by a stop or after `max_steps`.

        A stop may come with its last step.
        """
        loop = self._loop
        epoch, first = loop.epoch, loop.step_in_epoch
        if first == 0:
            self._totals.clear()
        self._parts.model.train()
        loop.fit(self._steps(epoch, first))
        if (loop.epoch, loop.step_in_epoch) == (epoch, first):
            again = "it is used up after one epoch; pass a DataLoader" if epoch else "there is nothing to train on"
            raise UserError(f"train_loader yields no batches: {again}.")
        self._compare_weights()
        return loop.epoch > epoch

    def _steps(self, epoch: int, first: int) -> Iterator[Step]:
        for number, (step, is_last) in enumerate(mark_last(self._source.steps(epoch, first)), first):
            yield Step(step.counted(), epoch, number, is_last, step.padding)
            if number > first:
                self._compare_weights()
            if self._arguments.has_all_steps(self._loop.step):
                return

    def _compare_weights(self) -> None:
        """After the second step: gradients that are not averaged show, and DDP has told of those that are missing."""
        if not self._has_compared:
            self._has_compared = True
            check_same_weights(self._parts.runtime, self._parts.model)

    def _step(self, model: nn.Module, counted: tuple[Any, int | None]) -> tuple[Tensor, int, dict[str, Tensor]]:
        """The step function of the loop."""
        batch, planned = counted
        measures = self._arguments.val_loader is None  # metrics are those of the training data then
        result = self.task.run(model, to_device(batch, self._parts.runtime.device), planned, measures)
        if not (result.loss.requires_grad or isinstance(self._loop, ManualLoop)):
            raise UserError(
                "The loss does not depend on the trainable parameters of the model: compute it from the model's "
                "output, without detach() or item()."
            )
        sums = {}
        for name, (total, count) in result.sums.items():
            sums[name], sums[f"{name}/count"] = total, count
        return result.loss * result.samples, result.samples, sums

    def _end_epoch(self) -> None:
        """Validates, ends the scheduler's epoch, and saves."""
        arguments, step = self._arguments, self._loop.step
        figures = self._figures(self._totals, validates=not arguments.validate_every_steps)
        validates_now = arguments.validates_after(step)
        of_step = self._figures(self._since_validation) if validates_now else {}
        self._optimizer.end_epoch()
        if arguments.validate_every_steps:
            self._add_epoch(figures)
        else:
            self._optimizer.end_validation(figures[self._monitor.name])
            self._save_if_best(figures, self._add_epoch(figures))
        if validates_now:
            self._end_validation(of_step)
        if arguments.save_last or (arguments.save_every_steps and step % arguments.save_every_steps == 0):
            self._save_last()
        self._listeners.on_epoch(self.history.num_epochs, figures)

    def _cut_epoch_off(self) -> None:
        """Validates and saves where `max_steps` ends the training within an epoch.

        Its figures are not in the checkpoints: a training that is resumed with more steps goes on with this epoch.
        """
        by_step = self._arguments.validate_every_steps is not None
        figures, state = self._figures(self._totals, validates=not by_step), self._saved_state()
        if self._arguments.save_last:
            self._parts.checkpoints.save_last(state)
        is_best = self._add_epoch(figures)
        if not by_step:
            self._save_if_best(figures, is_best, state)
        self._listeners.on_epoch(self.history.num_epochs, figures)

    # --- validation -----------------------------------------------------------------------------------------------

    def _validate_within_epoch(self) -> None:
        """After the last step of an epoch, `_end_epoch` validates."""
        if self._loop.step_in_epoch:
            self._end_validation(self._figures(self._since_validation))
            self._loop.stop_if_asked()

    def _figures(self, totals: EpochTotals, validates: bool = True) -> dict[str, float]:
        """Those of the steps in `totals`, and of the validation data."""
        figures = totals.means()
        figures["lr"] = self._optimizer.torch.param_groups[0]["lr"]
        if not validates:
            return figures
        if self._arguments.val_loader is not None:
            parts = self._parts
            with self.inference_mode():
                measured = measure(parts.model, self._arguments.val_loader, self.task, parts.runtime, parts.seed)
            figures["val_loss"] = measured.pop("loss")
            figures.update(measured)
        self._monitor.check(figures)
        return figures

    def _end_validation(self, figures: dict[str, float]) -> None:
        """Of those by `validate_every_steps`."""
        step, history, value = self._loop.step, self.history, figures[self._monitor.name]
        self._since_validation.clear()
        self._optimizer.end_validation(value)
        is_best = self._monitor.is_better(value, history.best_value(self._monitor.name))
        history.append_step(step, figures)
        if is_best:
            history.best_step = step
        self._tell(f"Step {step}", figures, is_best)
        self._save_if_best(figures, is_best)
        self._listeners.on_figures(step, figures)

    def _add_epoch(self, figures: dict[str, float]) -> bool:
        """Adds an epoch to the history and returns whether it is the best so far."""
        history, name = self.history, self._monitor.name
        is_validated = self._arguments.validate_every_steps is None
        is_best = is_validated and self._monitor.is_better(figures[name], history.best_value(name))
        history.append(figures)
        if is_best:
            history.best_epoch = history.num_epochs
        self._tell(f"Epoch {history.num_epochs}", figures, is_best)
        return is_best

    def _tell(self, what: str, figures: dict[str, float], is_best: bool) -> None:
        if self._parts.runtime.is_main:
            self._parts.folder.mkdir(parents=True, exist_ok=True)
            self.history.save(self._parts.folder / "history.json")
            text = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
            print_line(f"{what}: {text}{' (best)' if is_best else ''}")

    def inference_mode(self) -> AbstractContextManager:
        """See `evaluation.inference_mode`; with the averaged weights, if there are any."""
        parts = self._parts
        return inference_mode(parts.model, parts.runtime, parts.precision, self._loop)

    # --- checkpoints ----------------------------------------------------------------------------------------------

    def state(self, in_parts: bool = False) -> dict[str, Any]:
        """See `TrainingEngine.state_dict`. in_parts: as in `TrainingLoop.state`, but rank 0 gets the whole model."""
        tensors, data = self._loop.state(in_parts)
        data[ENGINE] = {
            "history": self.history.to_json(),
            "epoch_totals": self._totals.to_json(),
            "since_validation": self._since_validation.to_json(),
        }
        with self._loop.inference_weights():
            # its tensors keep the weights that they have here
            used = self._parts.runtime.full_tensors(self._parts.model.state_dict())
        files: dict[str, dict[str, Tensor]] = {}
        for file, group in tensors.items():
            if file.partition("-")[0] != "model":
                files[file] = group
            elif self._parts.ema.enabled:
                files[file.replace("model", "training", 1)] = group
        if self._parts.runtime.is_main or not in_parts:
            files["model"] = used
        if self._arguments.extra_state:
            extra, data[ENGINE][EXTRA] = self._extra.packed()
            files |= {EXTRA: extra} if self._parts.runtime.is_main or not in_parts else {}
        return {"tensors": files, "data": data}

    def _saved_state(self) -> dict[str, Any]:
        return self.state(self._parts.checkpoints.are_in_parts)

    def _save_if_best(self, figures: dict[str, float], is_best: bool, state: dict[str, Any] | None = None) -> None:
        """Saves `state`, by default that of now, if it is the best so far, or among the `save_top_k` best."""
        arguments, checkpoints, monitor = self._arguments, self._parts.checkpoints, self._monitor
        score = Score(monitor.name, monitor.mode, figures[monitor.name])
        if arguments.save_top_k is None:
            if is_best and arguments.save_best:
                checkpoints.save_best(state or self._saved_state(), score)
        elif checkpoints.is_among_best(score, arguments.save_top_k):
            by_step = arguments.validate_every_steps is not None
            at = f"step-{self._loop.step}" if by_step else f"epoch-{self.history.num_epochs}"
            checkpoints.save_among_best(state or self._saved_state(), score, at, arguments.save_top_k)

    def _save_last(self) -> None:
        self._parts.checkpoints.save_last(self._saved_state())

    def _save_within_epoch(self) -> None:
        """After the last step of an epoch, `_end_epoch` saves when history and scheduler are past it, too."""
        if self._loop.step_in_epoch:
            self._save_last()

    def _continue_from(self, backup: Backup) -> None:
        loop, model, own = self._loop, self._parts.model, backup.data[ENGINE]
        self._extra.check_names(own.get(EXTRA, {}))
        load_model(model, backup)
        names = {*loop.trainable, *(name for name, _ in model.named_buffers())}
        training = backup.tensors.get("training") or {
            name: value for name, value in backup.tensors["model"].items() if name in names
        }
        loop.load_state({**backup.tensors, "model": training}, backup.data)
        self._parts.checkpoints.go_back_to(loop.step)
        self._extra.restore(backup.tensors.get(EXTRA, {}), own.get(EXTRA, {}))
        self.history = History.from_json(own["history"])
        self._totals.from_json(own["epoch_totals"])
        self._since_validation.from_json(own.get("since_validation", {}))
