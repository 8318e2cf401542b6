"""Trains any PyTorch model on one or many devices, with the same loop that trains diffusion models in Chorus.

With several ranks, every rank makes the same calls. The batch size is per rank, so N ranks train on N times as many
samples per step. The samples of a step depend only on the seed and the global batch size: one rank with batches of 64
and two ranks with batches of 32 give the same loss curve, up to rounding.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
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
    check_ema_decay,
    check_loader,
    check_model,
    check_state,
)
from modules.engine.bare_model import bare_model
from modules.engine.callbacks import listeners
from modules.engine.EngineCheckpoints import EngineCheckpoints, load_model
from modules.engine.EngineCommands import EngineCommands
from modules.engine.evaluation import inference_mode, measure, predict
from modules.engine.ExtraState import Stateful
from modules.engine.History import History
from modules.engine.joining import introduce_ranks, join_ranks, make_runtime, precision_name
from modules.engine.MetaWeights import InitWeights, MetaWeights
from modules.engine.metrics import Metric
from modules.engine.Monitor import Mode
from modules.engine.RankContext import rank_context
from modules.engine.same_ranks import check_same_program
from modules.engine.Sharding import Sharding, Strategy
from modules.engine.Task import Criterion, StepFn, Task
from modules.engine.TrainArguments import TrainArguments
from modules.engine.Training import EngineParts, Training
from modules.session.names import safe_file_name
from modules.session.TrainCallbacks import TrainCallbacks
from modules.trainer.BackupStore import Backup


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
    strategy: what ranks share. "ddp": nothing; "zero1": the optimizer's state; "fsdp": also weights and gradients;
        "hsdp": as "fsdp", but within groups of ranks. With the last two, make the optimizer after the engine, which
        replaces the parameters of the model.
    shard_blocks: the classes of modules that are gathered one at a time, such as the blocks of a transformer; by
        default, they are chosen by size.
    shard_group_size: ranks in a group of "hsdp"; by default those of a machine.
    activation_checkpointing: keep only the inputs of these blocks for the backward pass, which computes them again.
    init_weights: for a model that was built under `torch.device("meta")`: called with each of its modules that has
        weights of its own, after their `reset_parameters`; or the safetensors file of its state dict.
    optimizer_state_in_ram: keep the optimizer's state in system memory, and copy that of a few parameters at a time to
        the device for the step. For optimizers of torch.optim, with "ddp" and "zero1".

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
        strategy: Strategy = "ddp",
        shard_blocks: Sequence[type[nn.Module]] | None = None,
        shard_group_size: int | None = None,
        activation_checkpointing: bool = False,
        init_weights: InitWeights | None = None,
        optimizer_state_in_ram: bool = False,
    ):
        check_model(model)
        check_ema_decay(ema_decay)
        self.model = bare_model(model)
        sharding = Sharding(strategy, shard_blocks, shard_group_size, activation_checkpointing)
        sharding.check(self.model)
        self.runtime = make_runtime(device, distributed, local_rank, world_size, backend, sync_batchnorm, sharding)
        if optimizer_state_in_ram:
            sharding.check_state_in_ram(self.runtime)
        self.device = self.runtime.device
        self.seed = seed
        self.folder = Path(output_dir) / safe_file_name(experiment_name)
        self.history = History()
        self._precision = precision_name(use_amp, amp_dtype, self.device)
        if distributed:
            introduce_ranks(backend, self._precision)
            check_same_program(self.runtime, experiment_name, seed, self.model)
        self._listeners = listeners(None, self.is_main_process)
        weights = MetaWeights(self.model, init_weights, seed, self.device)
        if warning := sharding.prepare(self.model, self.runtime, self._precision, weights):
            self._listeners.on_warning(warning)
        self._commands = EngineCommands()
        self._checkpoints = EngineCheckpoints(self.folder, self.runtime, self._on_checkpoint, self._on_warning)
        ema = EmaConfig(enabled=use_ema, decay=ema_decay)
        self._parts = EngineParts(
            self.model,
            self.runtime,
            self.folder,
            self._checkpoints,
            self._precision,
            ema,
            self.seed,
            optimizer_state_in_ram,
        )
        self._training: Training | None = None  # the last call of `train`
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
        optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer],
        criterion: Criterion | None = None,
        scheduler: LRScheduler | Mapping[str, LRScheduler] | None = None,
        num_epochs: int | None = None,
        max_steps: int | None = None,
        save_best: bool = True,
        save_last: bool = True,
        gradient_accumulation_steps: int | Mapping[int, int] = 1,
        clip_grad_norm: float | None = None,
        resume: bool | str | os.PathLike | None = None,
        metrics: Mapping[str, Metric] | None = None,
        step_fn: StepFn | None = None,
        monitor: str | None = None,
        mode: Mode | None = None,
        scheduler_interval: Literal["epoch", "step"] = "epoch",
        save_every_steps: int | None = None,
        save_top_k: int | None = None,
        validate_every_steps: int | None = None,
        extra_state: Mapping[str, Stateful] | None = None,
        unused_parameters: bool = False,
        callbacks: TrainCallbacks | Iterable[TrainCallbacks] | None = None,
    ) -> History:
        """Trains for `num_epochs` or `max_steps` in total and returns the history, which is the same on every rank.

        train_loader, val_loader: DataLoaders with the batch size per rank, whose samples are split over the ranks, or
            other iterables of batches. A loader with a DistributedSampler is used as it is.
        criterion(output, target): returns the mean loss of a batch of (inputs, target).
        step_fn(model, batch): instead of a criterion, for all other batches. It returns the mean loss, or (loss,
            samples), or (loss, samples, metrics), where each metric is its mean over the batch or a pair (sum, count).
            If it does not return the samples, they are those that the loader has put together; from other iterables
            of batches, the length of the batch's first tensor.
        optimizer, scheduler: from torch, for the parameters of the model. Several optimizers are a mapping from names,
            as are their schedulers; step_fn then calls `backward` for each of them.
        scheduler_interval: whether the scheduler steps after every epoch or after every optimizer step.
            ReduceLROnPlateau gets the metric `monitor`.
        num_epochs: passes over the data in total, including those before a resume.
        max_steps: optimizer steps in total; the last epoch may then be incomplete. Of both, what ends first counts.
        save_best: save a checkpoint after an epoch that is the best so far.
        save_last: save a checkpoint after every epoch, and when training is stopped.
        gradient_accumulation_steps: batches per rank in one optimizer step. A mapping changes their number after some
            epochs: with {0: 8, 4: 2}, it is 8 at first, and 2 after four epochs.
        clip_grad_norm: maximum gradient norm.
        resume: True or "last" continues from the last checkpoint, if there is one; "best" or the folder of a checkpoint
            continues from that one.
        metrics: name -> f(output, target), which returns one value per sample or (sum, count), or a torchmetrics
            object. Computed on the validation data, or on the training data if there is no val_loader.
        monitor: the metric that selects the best epoch. By default "val_loss", or "train_loss" without a val_loader.
        mode: whether lower ("min") or higher ("max") values of `monitor` are better; by default as usual for metrics of
            that name, such as "mae" or "accuracy".
        save_every_steps: also save a checkpoint every so many optimizer steps.
        save_top_k: keep the checkpoints of so many best epochs or validations in checkpoints/top, in place of
            `save_best`.
        validate_every_steps: validate after every so many optimizer steps in place of every epoch. The best checkpoint
            and ReduceLROnPlateau then go by these validations, whose figures are in `History.by_step`.
        extra_state: name -> object with `state_dict()` and `load_state_dict(state)`, such as a teacher or a buffer,
            which checkpoints save and a resume restores. On several ranks, the state is rank 0's.
        unused_parameters: whether a step may leave parameters without a gradient.
        callbacks: one or several, called at the start, for every optimizer step, validation, epoch and checkpoint, for
            warnings, and at the end or on an error. Warnings are printed unless one of them overrides `on_warning`.

        Raises UserError for mistakes of the caller.
        """
        arguments = TrainArguments(
            train_loader=train_loader,
            val_loader=val_loader,
            optimizer=optimizer,
            criterion=criterion,
            scheduler=scheduler,
            num_epochs=num_epochs,
            max_steps=max_steps,
            save_best=save_best,
            save_last=save_last,
            gradient_accumulation_steps=gradient_accumulation_steps,
            clip_grad_norm=clip_grad_norm,
            resume=resume,
            metrics=metrics if metrics is not None else {},
            step_fn=step_fn,
            monitor=monitor,
            mode=mode,
            scheduler_interval=scheduler_interval,
            save_every_steps=save_every_steps,
            save_top_k=save_top_k,
            validate_every_steps=validate_every_steps,
            extra_state=extra_state if extra_state is not None else {},
            unused_parameters=unused_parameters,
        )
        self._listeners = listeners(callbacks, self.is_main_process)
        self._commands = EngineCommands(rank_context().commands)
        self._training = training = Training(self._parts, arguments, self._listeners, self._commands)
        loaded, self._loaded = self._loaded, None
        training.begin(loaded)
        self.history = training.history
        training.run()
        return self.history

    def backward(self, loss: Tensor, optimizer: str, *, samples: int | None = None, retain_graph: bool = False) -> None:
        """Makes a step of one of several optimizers; called by step_fn, on every rank in the same order.

        The gradient is that of the mean loss over the samples of all ranks. Only parameters of this optimizer get one;
        they are clipped and stepped, and have no gradient afterwards. It does nothing while the model is evaluated.

        loss: the mean over the batch, a scalar.
        optimizer: its name in the mapping that `train` has got.
        samples: of which `loss` is the mean; by default those in the batch.
        retain_graph: keeps the graph for another call whose loss shares a part of it.
        """
        if self._training is None:
            raise UserError("engine.backward: there is no training yet; call it in the step_fn of train.")
        self._training.backward(loss, optimizer, samples, retain_graph)

    def stop(self) -> None:
        """Ends `train` within two steps, with a checkpoint; for callbacks that decide when training is done.

        It is enough that one rank calls it. The history then says `stopped`.
        """
        self._commands.stop()

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
        before = self._training.task if self._training else Task(criterion, step_fn, caller="evaluate")
        given = criterion is not None or step_fn is not None
        task = Task(
            criterion if given else before.criterion,
            step_fn if given else before.step_fn,
            before.metrics if metrics is None else metrics,
            "evaluate",
        )
        with self._inference_mode():
            return measure(self.model, loader, task, self.runtime, self.seed)

    def predict(self, loader: Iterable[Any]) -> Tensor:
        """The outputs for all samples in the loader's order, on the CPU: shape (samples, ...); the same on every rank.

        A batch is either the inputs, or a tuple whose first element is the inputs.
        """
        check_loader("loader", loader)
        with self._inference_mode():
            return predict(self.model, loader, self.runtime, self.seed)

    def _inference_mode(self) -> AbstractContextManager:
        if self._training is None:
            return inference_mode(self.model, self.runtime, self._precision)
        return self._training.inference_mode()

    # --- checkpoints ----------------------------------------------------------------------------------------------

    @property
    def last_checkpoint(self) -> Path | None:
        """The folder of the newest checkpoint; its model.safetensors can be loaded into the bare model."""
        return self._checkpoints.last

    @property
    def best_checkpoint(self) -> Path | None:
        """The folder of the best checkpoint by the figure `monitor`."""
        return self._checkpoints.best

    @property
    def top_checkpoints(self) -> list[Path]:
        """The folders of the checkpoints that `save_top_k` keeps, the best one first."""
        return self._checkpoints.top

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly: {"tensors": file -> name -> tensor, "data": plain data}.

        The tensors are live, not copies. tensors["model"] is the model's state_dict, with the averaged weights if there
        are any. Complete only after the first call of `train`. All ranks must call it; where they share weights or the
        optimizer's state, rank 0 gets all, and the others may get nothing.
        """
        if self._training is None:
            return {"tensors": {"model": self.runtime.full_tensors(self.model.state_dict())}, "data": {}}
        return self._training.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned; the next call of `train` continues from there.

        Raises UserError if it belongs to another model.
        """
        check_state(state)
        backup = Backup(Path("state"), dict(state["tensors"]), dict(state["data"]))
        load_model(self.model, backup)
        self._loaded = backup if backup.data else None

    def _on_checkpoint(self, path: Path, step: int) -> None:
        self._listeners.on_backup(path, step)

    def _on_warning(self, text: str) -> None:
        self._listeners.on_warning(text)
