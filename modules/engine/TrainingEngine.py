"""Trains any PyTorch model on one or many devices, with the same loop that trains diffusion models in Chorus.

With several ranks, every rank makes the same calls. The batch size is per rank, so N ranks train on N times as many
samples per step. The samples of a step depend only on the seed and the global batch size: one rank with batches of 64
and two ranks with batches of 32 give the same loss curve, up to rounding.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from modules.config.EmaConfig import EmaConfig
from modules.config.errors import UserError
from modules.distributed.setup_distributed import cleanup_distributed
from modules.engine.arguments import (
    Backend,
    check_clip_grad_norm,
    check_count,
    check_criterion,
    check_ema_decay,
    check_loader,
    check_model,
    check_optimizer,
    check_plateau,
    check_resume,
    check_scheduler,
    check_state,
)
from modules.engine.bare_model import bare_model
from modules.engine.batches import to_device
from modules.engine.callbacks import EngineBoard, listeners, told_of_failure
from modules.engine.EngineCheckpoints import EngineCheckpoints
from modules.engine.EngineCommands import EngineCommands, stopping_on_ctrl_c
from modules.engine.EngineOptimizer import EngineOptimizer
from modules.engine.EpochTotals import EpochTotals
from modules.engine.evaluation import measure, predict
from modules.engine.History import History
from modules.engine.joining import introduce_ranks, join_ranks, make_runtime, precision_name
from modules.engine.loading import StepSource, mark_last, step_source
from modules.engine.metrics import Metric, is_torchmetric
from modules.engine.Monitor import Mode, Monitor
from modules.engine.RankContext import rank_context
from modules.engine.same_ranks import check_same_program, check_same_weights
from modules.engine.Task import Criterion, StepFn, Task
from modules.session.backups import ENGINE
from modules.session.names import safe_file_name
from modules.session.printing import print_line
from modules.session.TrainCallbacks import CallbackList, TrainCallbacks
from modules.trainer.BackupStore import Backup
from modules.trainer.evaluation_mode import evaluation_mode
from modules.trainer.heap import keep_freed_memory
from modules.trainer.LoopSettings import LoopSettings
from modules.trainer.Step import Step
from modules.trainer.TrainingLoop import Action, TrainingLoop, autocast
from modules.trainer.Trigger import Trigger

REMEDY_FOR_NAN = "lower the optimizer's lr, or pass use_amp=False"


class TrainingEngine:
    """Trains a model on one device, or as one of several ranks.

        engine = TrainingEngine(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        history = engine.train(loader, optimizer=optimizer, criterion=nn.CrossEntropyLoss(), num_epochs=9)

    With several ranks, every rank makes the same calls. The model, its device, the history and the folder of the output
    are the attributes `model`, `device`, `history` and `folder`.

    model: any module with parameters; it is moved to the device. It is taken out of DistributedDataParallel and
        `torch.compile`, and stays compiled.
    device: by default the first GPU, or the GPU of this rank, or the CPU if there is no GPU.
    distributed: whether this process is one of several ranks. They have been joined by `setup_distributed`, or are
        joined now according to the launcher's variables.
    local_rank, world_size: if given, checked against what this process has joined as.
    backend: "nccl" or "gloo"; by default "nccl" with NVIDIA GPUs.
    use_amp: run forward passes under autocast.
    amp_dtype: torch.bfloat16, or torch.float16 with loss scaling; by default bfloat16 if the device supports it.
    use_ema: keep an exponential moving average of the parameters, which validation, `predict` and the saved models
        use.
    ema_decay: what the decay of the average rises to during the first steps.
    sync_batchnorm: BatchNorm layers in training mode normalize over the batches of all ranks.
    experiment_name, output_dir: checkpoints, history.json and TensorBoard logs are written to
        output_dir/experiment_name.
    seed: determines the order of the samples, what datasets draw while they load them, and dropout.

    Raises UserError, with a one-sentence message, for mistakes of the caller.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device | str | None = None,
        distributed: bool = False,
        local_rank: int = 0,
        world_size: int = 1,
        backend: Backend | None = None,
        use_amp: bool = False,
        amp_dtype: torch.dtype | None = None,
        use_ema: bool = False,
        ema_decay: float = 0.9999,
        sync_batchnorm: bool = True,
        experiment_name: str = "experiment",
        output_dir: str | os.PathLike = "runs",
        seed: int = 42,
    ):
        check_model(model)
        check_ema_decay(ema_decay)
        model = bare_model(model)
        self.runtime = make_runtime(device, distributed, local_rank, world_size, backend, sync_batchnorm)
        self.device = self.runtime.device
        self.model = model.to(self.device)
        self.seed = seed
        self.folder = Path(output_dir) / safe_file_name(experiment_name)
        self.history = History()
        self._precision = precision_name(use_amp, amp_dtype, self.device)
        if distributed:
            introduce_ranks(backend, self._precision)
            check_same_program(self.runtime, experiment_name, seed, self.model)
        self._ema = EmaConfig(enabled=use_ema, decay=ema_decay)
        self._totals = EpochTotals()
        self._listeners = listeners(None, self.is_main_process)
        self._commands = EngineCommands()
        self._checkpoints = EngineCheckpoints(self.folder, self.runtime, self._on_checkpoint, self._on_warning)
        self._loop: TrainingLoop | None = None
        self._has_compared = False  # the weights of the ranks, in this training
        self._task: Task | None = None
        self._loaded: Backup | None = None

    # --- ranks ----------------------------------------------------------------------------------------------------

    @staticmethod
    def setup_distributed(rank: int, world_size: int, backend: Backend | None = None) -> None:
        """Joins `world_size` ranks on this machine as `rank`; a second call does nothing.

        If a launcher has set MASTER_ADDR and torch's other variables, those are used. Otherwise the ranks connect on
        port 12355 of this machine, or the port in MASTER_PORT. `launch_distributed_training` does this for its ranks.

        Raises UserError if the ranks can't join.
        """
        join_ranks(rank, world_size, backend)

    @staticmethod
    def cleanup_distributed() -> None:
        """Leaves the ranks after a clean end. A second call does nothing."""
        cleanup_distributed()

    @property
    def is_main_process(self) -> bool:
        """Whether this process is rank 0, which writes the files and prints."""
        return self.runtime.is_main

    def reduce_tensor(self, tensor: Tensor) -> Tensor:
        """The mean of `tensor` over the ranks; all ranks must call it with a tensor of the same shape."""
        return self.runtime.mean(tensor)

    _reduce_tensor = reduce_tensor

    # --- training -------------------------------------------------------------------------------------------------

    def train(
        self,
        train_loader: Iterable[Any],
        val_loader: Iterable[Any] | None = None,
        *,
        optimizer: torch.optim.Optimizer,
        criterion: Criterion | None = None,
        scheduler: LRScheduler | None = None,
        num_epochs: int,
        save_best: bool = True,
        save_last: bool = True,
        gradient_accumulation_steps: int = 1,
        clip_grad_norm: float | None = None,
        resume: bool | str | os.PathLike | None = None,
        metrics: Mapping[str, Metric] | None = None,
        step_fn: StepFn | None = None,
        monitor: str | None = None,
        mode: Mode | None = None,
        scheduler_interval: Literal["epoch", "step"] = "epoch",
        save_every_steps: int | None = None,
        unused_parameters: bool = False,
        callbacks: TrainCallbacks | Iterable[TrainCallbacks] | None = None,
    ) -> History:
        """Trains for `num_epochs` epochs in total and returns the history, which is the same on every rank.

        train_loader, val_loader: DataLoaders with the batch size per rank, whose samples are split over the ranks, or
            other iterables of batches. A loader with a DistributedSampler is used as it is.
        criterion(output, target): returns the mean loss of a batch of (inputs, target).
        step_fn(model, batch): instead of a criterion, for all other batches. It returns the mean loss, or (loss,
            samples), or (loss, samples, metrics), where each metric is its mean over the batch or a pair (sum, count).
            If it does not return the samples, they are those that the loader has put together; from other iterables
            of batches, the length of the batch's first tensor.
        optimizer, scheduler: from torch, for the parameters of the model.
        scheduler_interval: whether the scheduler steps after every epoch or after every optimizer step.
            ReduceLROnPlateau gets the metric `monitor`.
        num_epochs: passes over the data in total, including those before a resume.
        save_best: save a checkpoint after an epoch that is the best so far.
        save_last: save a checkpoint after every epoch, and when training is stopped.
        gradient_accumulation_steps: batches per rank in one optimizer step.
        clip_grad_norm: maximum gradient norm.
        resume: True or "last" continues from the last checkpoint, if there is one; "best" or the folder of a checkpoint
            continues from that one.
        metrics: name -> f(output, target), which returns one value per sample or (sum, count), or a torchmetrics
            object. Computed on the validation data, or on the training data if there is no val_loader.
        monitor: the metric that selects the best epoch. By default "val_loss", or "train_loss" without a val_loader.
        mode: whether lower ("min") or higher ("max") values of `monitor` are better; by default as usual for metrics of
            that name, such as "mae" or "accuracy".
        save_every_steps: also save a checkpoint every so many optimizer steps.
        unused_parameters: whether a step may leave parameters without a gradient.
        callbacks: one or several, called at the start, for every optimizer step, validation, epoch and checkpoint, for
            warnings, and at the end or on an error. Warnings are printed unless one of them overrides `on_warning`.

        Raises UserError for mistakes of the caller.
        """
        check_loader("train_loader", train_loader)
        if val_loader is not None:
            check_loader("val_loader", val_loader)
        check_optimizer(optimizer, self.model)
        criterion = check_criterion(criterion, self.device)
        check_scheduler(scheduler, scheduler_interval, optimizer)
        check_count("num_epochs", num_epochs)
        check_count("gradient_accumulation_steps", gradient_accumulation_steps)
        if save_every_steps:
            check_count("save_every_steps", save_every_steps)
        check_clip_grad_norm(clip_grad_norm)
        check_resume(resume)
        self._listeners = listeners(callbacks, self.is_main_process)
        task = Task(criterion, step_fn, metrics if metrics is not None else {})
        if val_loader is None and any(map(is_torchmetric, task.metrics.values())):
            raise UserError("metrics: torchmetrics objects need a val_loader; pass one.")
        source = step_source(train_loader, self.runtime, gradient_accumulation_steps, self.seed)
        adapted = EngineOptimizer(optimizer, scheduler, scheduler_interval, self.model)
        self._task = task
        figure = monitor or ("train_loss" if val_loader is None else "val_loss")
        monitored = Monitor(figure, mode, otherwise=getattr(scheduler, "mode", None))
        check_plateau(scheduler, monitored)
        if task.step_fn is None:  # the names of its metrics are only known when it returns them
            of_validation = ["val_loss"] if val_loader is not None else []
            monitored.check(["train_loss", "lr", *of_validation, *task.metrics])
        board = EngineBoard(self.folder / "tensorboard")
        if self.is_main_process:
            self._listeners.listeners.append(board)
        self._commands = EngineCommands(rank_context().commands)
        loop = self._loop = TrainingLoop(
            self.model,
            self._step_function(task, measures=val_loader is None),
            lambda params: adapted,
            (source.num_steps() or 0) * num_epochs,
            LoopSettings(clip_grad_norm or 0.0, self._ema, self._precision, self.seed, remedy_for_nan=REMEDY_FOR_NAN),
            self.runtime,
            CallbackList([self._totals, self._listeners]),
            self._commands,
            unused_parameters,
        )
        if save_every_steps:
            loop.actions["save"] = Action(Trigger(save_every_steps, "steps"), lambda: self._save_within_epoch(loop))
        if self.device.type == "cpu":
            keep_freed_memory()
        loaded, self._loaded = self._loaded, None
        backup = self._checkpoints.load(resume) if resume else loaded
        if backup is None:
            self._checkpoints.start_fresh()
            self.history = History()
        else:
            self._resume(loop, backup)
        with ExitStack() as stack:
            stack.callback(self._checkpoints.close)
            stack.callback(board.close)
            if save_last and self.runtime.world_size == 1:
                stack.enter_context(stopping_on_ctrl_c(self._commands))
            stack.enter_context(told_of_failure(self._listeners))
            self._listeners.on_started(time.time())
            self._has_compared = False
            while loop.epoch < num_epochs and not loop.stopped:
                if not self._train_epoch(loop, source):  # stopped before the epoch's end
                    break
                figures = self._end_epoch(adapted, task, val_loader, monitored)
                is_best = self._record_epoch(figures, monitored)
                if save_best and is_best:
                    self._checkpoints.save_best(self.state_dict())
                if save_last or (save_every_steps and loop.step % save_every_steps == 0):
                    self._save_last()
                self._listeners.on_epoch(self.history.num_epochs, figures)
            if loop.stopped and save_last:
                self._save_last()
            self.history.stopped = loop.stopped and loop.epoch < num_epochs
            rank_context().step, rank_context().stopped = loop.step, self.history.stopped
            self.runtime.barrier("saving")
        self._listeners.on_finished(loop.step)
        return self.history

    def stop(self) -> None:
        """Ends `train` after the current step, with a checkpoint; for callbacks that decide when training is done.

        It is enough that one rank calls it. The history then says `stopped`.
        """
        self._commands.stop()

    def _train_epoch(self, loop: TrainingLoop, source: StepSource) -> bool:
        """Whether the epoch was trained to its end; a stop may come with its last step."""
        epoch, first = loop.epoch, loop.step_in_epoch
        if first == 0:
            self._totals.clear()
        self.model.train()
        loop.fit(self._steps(source, epoch, first))
        if loop.epoch == epoch and not loop.stopped:
            again = "it is used up after one epoch; pass a DataLoader" if epoch else "there is nothing to train on"
            raise UserError(f"train_loader yields no batches: {again}.")
        self._compare_weights()
        return loop.epoch > epoch

    def _steps(self, source: StepSource, epoch: int, first: int) -> Iterator[Step]:
        for number, (step, is_last) in enumerate(mark_last(source.steps(epoch, first)), first):
            yield Step(step.counted(), epoch, number, is_last, step.padding)
            if number > first:
                self._compare_weights()

    def _compare_weights(self) -> None:
        """After the second step: gradients that are not averaged show, and DDP has told of those that are missing."""
        if not self._has_compared:
            self._has_compared = True
            check_same_weights(self.runtime, self.model)

    def _end_epoch(
        self, optimizer: EngineOptimizer, task: Task, val_loader: Iterable[Any] | None, monitor: Monitor
    ) -> dict[str, float]:
        figures = self._totals.means()
        figures["lr"] = optimizer.torch.param_groups[0]["lr"]
        if val_loader is not None:
            measured = self._measure(val_loader, task)
            figures["val_loss"] = measured.pop("loss")
            figures.update(measured)
        monitor.check(figures)
        optimizer.end_epoch(figures[monitor.name])
        return figures

    def _record_epoch(self, figures: dict[str, float], monitor: Monitor) -> bool:
        """Adds an epoch to the history and returns whether it is the best so far."""
        self.history.append(figures)
        best = self.history.best_epoch
        is_best = monitor.is_better(figures[monitor.name], self.history[monitor.name][best - 1] if best else None)
        if is_best:
            self.history.best_epoch = self.history.num_epochs
        if self.is_main_process:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.history.save(self.folder / "history.json")
            text = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
            print_line(f"Epoch {self.history.num_epochs}: {text}{' (best)' if is_best else ''}")
        return is_best

    def _step_function(self, task: Task, measures: bool) -> Callable[[nn.Module, Any], Any]:
        """The step function for the loop. measures: whether to compute metrics on the training data."""

        def step(model: nn.Module, counted: tuple[Any, int | None]) -> tuple[Tensor, int, dict[str, Tensor]]:
            batch, planned = counted
            result = task.run(model, to_device(batch, self.device), planned, measures)
            if not result.loss.requires_grad:
                raise UserError(
                    "The loss does not depend on the trainable parameters of the model: compute it from the model's "
                    "output, without detach() or item()."
                )
            sums = {}
            for name, (total, count) in result.sums.items():
                sums[name], sums[f"{name}/count"] = total, count
            return result.loss * result.samples, result.samples, sums

        return step

    # --- evaluation -----------------------------------------------------------------------------------------------

    def evaluate(
        self,
        loader: Iterable[Any],
        criterion: Criterion | None = None,
        metrics: Mapping[str, Metric] | None = None,
        step_fn: StepFn | None = None,
    ) -> dict[str, float]:
        """Returns {"loss": mean over all samples, name: value of each metric}, the same on every rank.

        Every sample counts exactly once. The model is evaluated in evaluation mode, with its averaged weights if there
        are any.

        criterion, metrics, step_fn: as in `train`; by default those of its last call.
        """
        check_loader("loader", loader)
        before = self._task or Task(criterion, step_fn, caller="evaluate")
        given = criterion is not None or step_fn is not None
        task = Task(
            criterion if given else before.criterion,
            step_fn if given else before.step_fn,
            before.metrics if metrics is None else metrics,
            "evaluate",
        )
        return self._measure(loader, task)

    def _measure(self, loader: Iterable[Any], task: Task) -> dict[str, float]:
        with self._inference_mode():
            return measure(self.model, loader, task, self.runtime, self.seed)

    def predict(self, loader: Iterable[Any]) -> Tensor:
        """The outputs for all samples in the loader's order, on the CPU: shape (samples, ...); the same on every rank.

        A batch is either the inputs, or a tuple whose first element is the inputs.
        """
        check_loader("loader", loader)
        with self._inference_mode():
            return predict(self.model, loader, self.runtime, self.seed)

    def _inference_mode(self) -> ExitStack:
        """Inside, the model has its inference weights, is in evaluation mode and uses the precision of training."""
        with ExitStack() as stack:
            stack.enter_context(self.runtime.heartbeat.phase("sampling"))
            stack.enter_context(evaluation_mode(self.model))
            if self._loop is not None:
                stack.enter_context(self._loop.inference_weights())
            stack.enter_context(autocast(self.device, self._precision))
            return stack.pop_all()

    # --- checkpoints ----------------------------------------------------------------------------------------------

    @property
    def last_checkpoint(self) -> Path | None:
        """The folder of the newest checkpoint; its model.safetensors can be loaded into the bare model."""
        return self._checkpoints.last

    @property
    def best_checkpoint(self) -> Path | None:
        """The folder of the checkpoint of the best epoch."""
        return self._checkpoints.best

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly: {"tensors": file -> name -> tensor, "data": plain data}.

        The tensors are live, not copies. tensors["model"] is the model's state_dict, with the averaged weights if there
        are any. Complete only after the first call of `train`. All ranks must call it.
        """
        if self._loop is None:
            return {"tensors": {"model": self.model.state_dict()}, "data": {}}
        tensors, data = self._loop.state()
        data[ENGINE] = {"history": self.history.to_json(), "epoch_totals": self._totals.to_json()}
        with self._loop.inference_weights():
            used = self.model.state_dict()  # its tensors keep the weights that they have here
        if self._ema.enabled:
            tensors["training"] = tensors["model"]
        return {"tensors": {**tensors, "model": used}, "data": data}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned; the next call of `train` continues from there.

        Raises UserError if it belongs to another model.
        """
        check_state(state)
        backup = Backup(Path("state"), dict(state["tensors"]), dict(state["data"]))
        self._load_model(backup)
        self._loaded = backup if backup.data else None

    def _on_checkpoint(self, path: Path, step: int) -> None:
        self._listeners.on_backup(path, step)

    def _on_warning(self, text: str) -> None:
        self._listeners.on_warning(text)

    def _save_last(self) -> None:
        self._checkpoints.save_last(self.state_dict())

    def _save_within_epoch(self, loop: TrainingLoop) -> None:
        """After the last step of an epoch, `train` saves when history and scheduler are past that epoch, too."""
        if loop.step_in_epoch:
            self._save_last()

    def _load_model(self, backup: Backup) -> None:
        try:
            self.model.load_state_dict(backup.tensors["model"])
        except RuntimeError as error:
            raise UserError(
                f"The checkpoint belongs to another model: {str(error).splitlines()[-1].strip()}"
            ) from error

    def _resume(self, loop: TrainingLoop, backup: Backup) -> None:
        """Restores loop, history and model from the checkpoint."""
        self._load_model(backup)
        names = {*loop.trainable, *(name for name, _ in self.model.named_buffers())}
        training = backup.tensors.get("training") or {
            name: value for name, value in backup.tensors["model"].items() if name in names
        }
        loop.load_state({**backup.tensors, "model": training}, backup.data)
        self._checkpoints.go_back_to(loop.step)
        own = backup.data[ENGINE]
        self.history = History.from_json(own["history"])
        self._totals.from_json(own["epoch_totals"])
