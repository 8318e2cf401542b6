"""Trains any PyTorch model on one or many devices, with the same loop that trains diffusion models in Chorus.

With several ranks, every rank makes the same calls. The batch size is per rank, so N ranks train on N times as many
samples per step. The samples of a step depend only on the seed and the global batch size: one rank with batches of 64
and two ranks with batches of 32 give the same loss curve, up to rounding.
"""

from __future__ import annotations

import os
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
    check_callbacks,
    check_clip_grad_norm,
    check_count,
    check_ema_decay,
    check_loader,
    check_model,
    check_monitor,
    check_optimizer,
    check_prediction,
    check_resume,
    check_scheduler,
    check_state,
)
from modules.engine.batches import to_device
from modules.engine.EngineCheckpoints import EngineCheckpoints
from modules.engine.EngineOptimizer import EngineOptimizer
from modules.engine.EpochTotals import EpochTotals
from modules.engine.History import History
from modules.engine.joining import introduce_ranks, join_ranks, make_runtime, precision_name
from modules.engine.loading import LoadedStep, StepSource, step_source
from modules.engine.metrics import MeanFigures, Metric, is_torchmetric, mean_to_sum
from modules.engine.predictions import gather_predictions
from modules.engine.RankContext import rank_context
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
from modules.trainer.TensorBoardCallbacks import TensorBoardCallbacks
from modules.trainer.TrainingLoop import Action, TrainingLoop, autocast
from modules.trainer.Trigger import Trigger


class TrainingEngine:
    """Trains a model on one device, or as one of several ranks.

        engine = TrainingEngine(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        history = engine.train(loader, optimizer=optimizer, criterion=nn.CrossEntropyLoss(), num_epochs=9)

    With several ranks, every rank makes the same calls. The model, its device, the history and the folder of the output
    are the attributes `model`, `device`, `history` and `folder`.

    model: any module with parameters; it is moved to the device.
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
        self.runtime = make_runtime(device, distributed, local_rank, world_size, backend, sync_batchnorm)
        self.device = self.runtime.device
        self.model = model.to(self.device)
        self.seed = seed
        self.folder = Path(output_dir) / safe_file_name(experiment_name)
        self.history = History()
        self._precision = precision_name(use_amp, amp_dtype, self.device)
        if distributed:
            introduce_ranks(backend, self._precision)
        self._ema = EmaConfig(enabled=use_ema, decay=ema_decay)
        self._totals = EpochTotals()
        self._warnings = PrintWarnings() if self.is_main_process else TrainCallbacks()
        self._checkpoints = EngineCheckpoints(self.folder, self.runtime, self._warnings.on_warning)
        self._loop: TrainingLoop | None = None
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
        scheduler_interval: Literal["epoch", "step"] = "epoch",
        save_every_steps: int | None = None,
        unused_parameters: bool = False,
        callbacks: TrainCallbacks | None = None,
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
        monitor: the metric that selects the best epoch. Lower is better if its name ends in "loss", otherwise higher.
            By default "val_loss", or "train_loss" without a val_loader.
        save_every_steps: also save a checkpoint every so many optimizer steps.
        unused_parameters: whether a step may leave parameters without a gradient.
        callbacks: called for every optimizer step and for warnings.

        Raises UserError for mistakes of the caller.
        """
        check_loader("train_loader", train_loader)
        if val_loader is not None:
            check_loader("val_loader", val_loader)
        check_optimizer(optimizer, self.model)
        check_scheduler(scheduler, scheduler_interval, optimizer)
        check_count("num_epochs", num_epochs)
        check_count("gradient_accumulation_steps", gradient_accumulation_steps)
        if save_every_steps:
            check_count("save_every_steps", save_every_steps)
        check_clip_grad_norm(clip_grad_norm)
        check_resume(resume)
        check_callbacks(callbacks)
        task = Task(criterion, step_fn, metrics if metrics is not None else {})
        if val_loader is None and any(map(is_torchmetric, task.metrics.values())):
            raise UserError("metrics: torchmetrics objects need a val_loader; pass one.")
        source = step_source(train_loader, self.runtime, gradient_accumulation_steps, self.seed)
        adapted = EngineOptimizer(optimizer, scheduler, scheduler_interval, self.model)
        self._task = task
        monitor = monitor or ("train_loss" if val_loader is None else "val_loss")
        if task.step_fn is None:  # the names of its metrics are only known when it returns them
            of_validation = ["val_loss"] if val_loader is not None else []
            check_monitor(monitor, ["train_loss", "lr", *of_validation, *task.metrics])
        loop = self._loop = TrainingLoop(
            self.model,
            self._step_function(task, measures=val_loader is None),
            lambda params: adapted,
            (source.num_steps() or 0) * num_epochs,
            LoopSettings(clip_grad_norm or 0.0, self._ema, self._precision, self.seed),
            self.runtime,
            CallbackList([self._totals, callbacks or self._warnings]),
            rank_context().commands,
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
            board = TensorBoardCallbacks(self.folder / "tensorboard")
            stack.callback(board.close)
            while loop.epoch < num_epochs and not loop.stopped:
                if not self._train_epoch(loop, source):  # stopped before the epoch's end
                    break
                figures = self._end_epoch(adapted, task, val_loader, monitor)
                is_best = self._record_epoch(figures, monitor)
                if self.is_main_process:
                    board.add_scalars(figures, self.history.num_epochs)
                if save_best and is_best:
                    self._checkpoints.save_best(self.state_dict())
                if save_last or (save_every_steps and loop.step % save_every_steps == 0):
                    self._save_last()
            if loop.stopped and save_last:
                self._save_last()
        rank_context().step, rank_context().stopped = loop.step, loop.stopped and loop.epoch < num_epochs
        self.runtime.barrier("saving")
        return self.history

    def _train_epoch(self, loop: TrainingLoop, source: StepSource) -> bool:
        """Whether the epoch was trained to its end; a stop may come with its last step."""
        epoch, first = loop.epoch, loop.step_in_epoch
        if first == 0:
            self._totals.clear()
        self.model.train()
        steps = _mark_last(source.steps(epoch, first))
        loop.fit(
            Step(step.counted(), epoch, first + number, is_last, step.padding)
            for number, (step, is_last) in enumerate(steps)
        )
        if loop.epoch == epoch and not loop.stopped:
            raise UserError("train_loader yields no batches: there is nothing to train on.")
        return loop.epoch > epoch

    def _end_epoch(
        self, optimizer: EngineOptimizer, task: Task, val_loader: Iterable[Any] | None, monitor: str
    ) -> dict[str, float]:
        figures = self._totals.means()
        figures["lr"] = optimizer.torch.param_groups[0]["lr"]
        if val_loader is not None:
            measured = self._measure(val_loader, task)
            figures["val_loss"] = measured.pop("loss")
            figures.update(measured)
        check_monitor(monitor, figures)
        optimizer.end_epoch(figures[monitor])
        return figures

    def _record_epoch(self, figures: dict[str, float], monitor: str) -> bool:
        """Adds an epoch to the history and returns whether it is the best so far."""
        self.history.append(figures)
        sign = 1.0 if monitor.endswith("loss") else -1.0
        value, best = figures[monitor], self.history.best_epoch
        is_best = value == value and (best is None or sign * value < sign * self.history[monitor][best - 1])
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
        before = self._task or Task(criterion, step_fn)
        given = criterion is not None or step_fn is not None
        task = Task(
            criterion if given else before.criterion,
            step_fn if given else before.step_fn,
            before.metrics if metrics is None else metrics,
        )
        return self._measure(loader, task)

    @torch.no_grad()
    def _measure(self, loader: Iterable[Any], task: Task) -> dict[str, float]:
        figures = MeanFigures(task.metrics, self.device)
        with self._inference_mode():
            for step in step_source(loader, self.runtime, 1, self.seed).steps(0):
                if step.padding:
                    continue
                self.runtime.heartbeat.beat()
                ((batch, planned),) = step.counted()
                result = task.run(self.model, to_device(batch, self.device), planned)
                for name, pair in result.sums.items():
                    figures.add(name, *pair)
                figures.add("loss", *mean_to_sum(result.loss, result.samples, self.device))
        means = figures.means(self.runtime, "validating")
        if "loss" not in means:
            raise UserError("val_loader yields no batches: there is nothing to evaluate.")
        return means

    @torch.no_grad()
    def predict(self, loader: Iterable[Any]) -> Tensor:
        """The outputs for all samples in the loader's order, on the CPU: shape (samples, ...); the same on every rank.

        A batch is either the inputs, or a tuple whose first element is the inputs.
        """
        check_loader("loader", loader)
        own: list[Tensor | None] = []
        with self._inference_mode():
            for step in step_source(loader, self.runtime, 1, self.seed).steps(0):
                batch = to_device(step.batches[0], self.device)
                inputs = batch[0] if isinstance(batch, list | tuple) else batch
                outputs = self.model(inputs)
                check_prediction(outputs)
                own.append(None if step.padding else outputs.cpu())
                self.runtime.heartbeat.beat()
        ranks = gather_predictions(own, self.runtime)
        predictions = [part for parts in zip(*ranks, strict=True) for part in parts if part is not None]
        if not predictions:
            raise UserError("loader yields no batches: there is nothing to predict.")
        return torch.cat(predictions)

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


class PrintWarnings(TrainCallbacks):
    """Prints warnings."""

    def on_warning(self, text: str) -> None:
        print_line(f"Warning: {text}")


def _mark_last(steps: Iterator[LoadedStep]) -> Iterator[tuple[LoadedStep, bool]]:
    """Each step with whether it is the last one."""
    step = next(steps, None)
    while step is not None:
        following = next(steps, None)
        yield step, following is None
        step = following
