"""The model-agnostic training loop: micro-batches, mixed precision, clipping, EMA, metrics, state, periodic actions.

    optimizer = torch.optim.AdamW(model.parameters())
    loop = TrainingLoop(model, step_fn, lambda params: LoopOptimizer(optimizer), total_steps=100)
    loop.fit(Step([batch]) for batch in loader)

`step_fn(model, batch) -> (loss_sum, count, metrics)` returns the loss summed over the samples of the micro-batch
(scalar tensor), the number of samples, and sums of other metrics (name -> scalar tensor; the same names in every
micro-batch). Each sum is divided by the number of samples, or by the sum named "name/count" if there is one.
The gradient of a step is the mean over all its samples on all ranks, however they are divided into micro-batches.
BatchNorm does depend on the division: it normalizes over the micro-batches that all ranks run in the same pass, so
micro-batch i on N ranks gives the same result as one micro-batch with all those samples on one rank. With several
ranks, `step_fn` must therefore run the same BatchNorm layers in the same order on every rank. Other buffers that
change differently on different ranks are set to rank 0's values after every step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from modules.data.draws import torch_seed
from modules.distributed.Heartbeat import PHASE_LIMITS, Phase
from modules.distributed.Runtime import Runtime, default_device
from modules.distributed.seeding import seed_device
from modules.distributed.shards import Saved, assign
from modules.layers.LowCopies import forget_casts
from modules.session.RunningMean import RunningMean
from modules.session.StepInfo import StepInfo
from modules.session.TrainCallbacks import TrainCallbacks
from modules.session.TrainCommands import TrainCommands
from modules.trainer.Action import Action
from modules.trainer.autocasting import autocast
from modules.trainer.Ema import Ema, swap_weights
from modules.trainer.FusedBackward import FusedBackward
from modules.trainer.LateReport import COUNT, LOSS, LateReport, Names, is_not_finite, sums_of, totals_of
from modules.trainer.LoopOptimizer import LoopOptimizer
from modules.trainer.LoopSettings import LoopSettings
from modules.trainer.LossScaler import LossScaler
from modules.trainer.MemoryReading import MemoryReading
from modules.trainer.PassGraphs import PassGraphs
from modules.trainer.preserve_buffers import preserve_buffers
from modules.trainer.resuming import check_same_parameters
from modules.trainer.Step import Step
from modules.trainer.TrainingError import TrainingError
from modules.trainer.TrainingPass import TrainingPass

StepFunction = Callable[[nn.Module, Any], tuple[Tensor, int, dict[str, Tensor]]]
MakeOptimizer = Callable[[dict[str, nn.Parameter]], LoopOptimizer]

MAX_SKIPPED_STEPS = 25


class TrainingLoop:
    """Trains any `nn.Module`. The loop is the same on one rank and on many; `runtime` hides the difference.

    make_optimizer: called with the trainable parameters by name, on their device and prepared for distributed training.
    total_steps: optimizer steps of the whole run, for progress reports.
    unused_parameters: whether a step may leave trainable parameters without a gradient, such as those of one of two
        denoisers. With several ranks, DDP then searches for unused parameters in every step.
    `step` is the number of optimizer steps done; `ema` is None if it is disabled. After every step, the `actions` that
    are due run in order; callers add theirs. `graphs`, if callers set it, makes the passes of `run_pass`.
    Raises TrainingError if no parameter requires a gradient.
    """

    def __init__(
        self,
        model: nn.Module,
        step_fn: StepFunction,
        make_optimizer: MakeOptimizer,
        total_steps: int,
        settings: LoopSettings | None = None,
        runtime: Runtime | None = None,
        callbacks: TrainCallbacks | None = None,
        commands: TrainCommands | None = None,
        unused_parameters: bool = False,
    ):
        self.settings = settings or LoopSettings()
        self.callbacks = callbacks or TrainCallbacks()
        self.commands = commands or TrainCommands()
        self.runtime = runtime or Runtime(default_device())
        self.step_fn = step_fn
        self.total_steps = total_steps
        self.actions: dict[str, Action] = {}
        self.graphs: PassGraphs | None = None
        self.step = 0
        self.epoch = 0
        self.step_in_epoch = 0  # steps done in the current epoch
        self.stopped = False
        self._smooth_loss = RunningMean()
        self._skipped_in_a_row = 0
        self._late: LateReport | None = None
        self._agreed: set[str] = set()  # requests known to all ranks and not yet served
        self._last_time = time.perf_counter()
        self._data_seconds = 0.0
        self._memory = MemoryReading(self.runtime.device, self.callbacks)
        self._recent_seconds: deque[float] = deque(maxlen=32)  # durations of steps, for the heartbeat's limit
        self._step_limit = max(self.settings.slowest_step_seconds, PHASE_LIMITS["training"])  # the first step is slow

        self.model = model
        if not any(param.requires_grad for param in model.parameters()):
            raise TrainingError("The model has no trainable parameter: set requires_grad on those to train.")
        # before anything keeps references to parameters, because sharding replaces them
        self._call = self.runtime.prepare(self.model, unused_parameters)
        self._needs_warm_up = self.runtime.needs_warm_up
        self.trainable = {name: param for name, param in self.model.named_parameters() if param.requires_grad}
        self.optimizer = make_optimizer(self.trainable)
        ema = self.settings.ema
        self.ema = Ema(self.trainable, ema.decay, ema.update_every, ema.start_after) if ema.enabled else None
        self.loss_scaler = LossScaler(self.settings.mixed_precision == "fp16", self.runtime.device)
        if self.settings.fused_backward:
            self._check_fused()
        self._fused = FusedBackward(self.trainable.values()) if self.settings.fused_backward else None
        # grad_scale is float32, too coarse for a float64 run
        self._has_float64 = any(param.dtype == torch.float64 for param in self.trainable.values())

    def _check_fused(self) -> None:
        conflicts = {
            "several ranks": self.runtime.world_size > 1,
            "gradient clipping": self.settings.max_grad_norm > 0,
            "fp16": self.settings.mixed_precision == "fp16",
        }
        if found := [name for name, is_there in conflicts.items() if is_there]:
            raise TrainingError(f"A fused backward pass is impossible with {found[0]}: switch one of the two off.")

    def fit(self, steps: Iterable[Step]) -> None:
        """Trains on `steps` until they are exhausted or the ranks agree to stop; `stopped` says which."""
        self._last_time = time.perf_counter()
        with self.runtime.heartbeat.phase("training"):
            for step in self._timed(steps):
                self.train_step(step)
                if self._after_step(step):
                    self.stopped = True
                    break
            self._read_late()
            self._run_actions(set())  # those requested during the last step

    def train_step(self, step: Step) -> None:
        """Makes one optimizer step without waiting for the device, unless the optimizer or `step_fn` does."""
        self.epoch = step.epoch
        forget_casts()  # of passes outside of steps; the weights may have been written since
        rates = self.optimizer.set_learning_rates(self.step)
        if self._needs_warm_up:
            self.warm_up(step.micro_batches[0], counts=not step.padding)
        totals, norm, names = self._fused_update(step) if self._fused else self._update(step)
        self.optimizer.clear_gradients()
        self.step += 1
        self.step_in_epoch = 0 if step.ends_epoch else step.index + 1
        if step.ends_epoch:
            self.epoch += 1
        if self.ema:
            self.ema.update(self.step)
        seconds = self._seconds_since_last()
        report = LateReport(step, self.step, seconds, rates, totals, norm, names, self._data_seconds)
        self._read_late()
        self._late = report
        self._recent_seconds.append(seconds)
        self._step_limit = max(self.settings.slowest_step_seconds, 10 * median(self._recent_seconds))
        self._beat()

    def state(self, in_parts: bool = False) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Everything needed to resume exactly: (tensors by file and name, plain data for JSON).

        All ranks must call it; only rank 0 is guaranteed to get full tensors. They may be the live tensors: copy them
        before training continues. in_parts: each rank gets those that it holds itself, in files of its own.
        """
        names: dict[Tensor, str] = {param: name for name, param in self.trainable.items()}
        optimizer_tensors, optimizer_numbers = self.optimizer.state(names)
        buffers = dict(self.model.named_buffers())
        persistent = {name: buffers[name] for name in self.model.state_dict() if name in buffers}
        tensors = {"model": {**{n: p.detach() for n, p in self.trainable.items()}, **persistent}}
        tensors["optimizer"] = optimizer_tensors
        if self.ema:
            tensors["ema"] = self.ema.averages
        files: dict[str, dict[str, Tensor]] = {}
        for file, group in tensors.items():
            holder = self.optimizer.divided if file == "optimizer" and self.optimizer.divided else self.runtime
            files |= holder.parts(file, group) if in_parts else {file: holder.full_tensors(group)}
        return files, {
            "step": self.step,
            "epoch": self.epoch,
            "step_in_epoch": self.step_in_epoch,
            "smooth_loss": self._smooth_loss.value,
            "smooth_loss_weight": self._smooth_loss.weight,
            "optimizer": optimizer_numbers,
            "loss_scale": self.loss_scaler.state_dict(),
            "ema": self.ema is not None,
        }

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Mapping[str, Saved]], data: dict[str, Any]) -> None:
        """Resumes from what `state` returned.

        Raises TrainingError, without changing anything, if the model, the trained parts or the optimizer differ.
        """
        own = dict((*self.model.named_buffers(), *self.trainable.items()))
        check_same_parameters(own, self.trainable.keys(), tensors["model"])
        self.optimizer.check_state(data["optimizer"])
        for name, value in tensors["model"].items():
            assign(own[name], value)
        names: dict[Tensor, str] = {param: name for name, param in self.trainable.items()}
        self.optimizer.load_state(names, tensors["optimizer"], data["optimizer"])
        if self.ema:
            # if EMA is enabled only now, it starts at the current weights
            averages = tensors.get("ema") or {name: tensors["model"][name] for name in self.trainable}
            self.ema.load(averages, data["step"])
        self.loss_scaler.load_state_dict(data["loss_scale"])
        for key in ("step", "epoch", "step_in_epoch"):
            setattr(self, key, data[key])
        weight = data.get("smooth_loss_weight", 1.0)  # old backups have no weight, as they did not correct the bias
        self._smooth_loss = RunningMean(data["smooth_loss"], 0.0 if data["smooth_loss"] is None else weight)

    def stop_if_asked(self) -> None:
        """Stops, on all ranks, if one was asked to between steps, such as by a validation; all must call it."""
        if any(self.runtime.gather(self.commands.stopping, "stopping")):
            self._agreed.add("stop")
            self.stopped = True

    def flush(self) -> None:
        """Reads the pending results of the last step, so that the smoothed loss includes it."""
        self._read_late()

    @contextmanager
    def inference_weights(self, averaged: bool = True) -> Iterator[None]:
        """Inside, the parameters hold the weights for inference; the training weights are restored bit for bit.

        averaged: use the EMA, if there is one. For an optimizer that averages by itself, its averages are always used.
        """
        own = self.optimizer.averaged_weights()
        if own is not None:
            with swap_weights(own):
                yield
        elif self.ema and averaged:
            with self.ema.applied():
                yield
        else:
            yield

    # --- one step -------------------------------------------------------------------------------------------------

    def _update(self, step: Step) -> tuple[Tensor, Tensor, Names]:
        """Updates the parameters; returns (totals as LateReport expects them, norm of the gradient, names)."""
        totals, names = self._accumulate(step, self._backward)
        self.optimizer.clear_stopped_gradients(self.step)
        gradients = self._gradients()
        totals, norm = self.runtime.sum_with_norm(totals, gradients)
        skipped = is_not_finite(totals[LOSS], norm)
        divisor = self._gradient_divisor(totals)
        norm = norm / divisor
        self._apply_gradients(self.optimizer, gradients, divisor, norm, skipped)
        self.loss_scaler.update(skipped)
        return totals, norm, names

    def _fused_update(self, step: Step) -> tuple[Tensor, Tensor, Names]:
        """As `_update`, within a single backward pass over all micro-batches. One rank only.

        Together they are as large as one micro-batch, because without accumulation only images of several shapes
        divide a step.
        """
        assert self._fused is not None
        losses: list[Tensor] = []
        totals, names = self._accumulate(step, losses.append)
        divisor = self._gradient_divisor(totals)
        skipped = is_not_finite(totals[LOSS])
        dividing: AbstractContextManager = nullcontext()
        if self._divides_gradients(self.optimizer):
            dividing = self._dividing_in_kernel(self.optimizer, divisor, skipped)
        elif skipped.item():
            losses.clear()

        def update(param: nn.Parameter) -> bool:
            if param.grad is not None and not self._divides_gradients(self.optimizer):
                self._divide([param.grad], divisor)
            return self.optimizer.step_alone(self.step, param)

        with dividing, self._fused.updating(update):
            for loss in [sum(losses[1:], losses[0])] if losses else []:
                loss.backward()
        norm = self._fused.gradient_norm() if losses else totals[LOSS]
        return totals, norm / divisor, names

    def _backward(self, loss_sum: Tensor) -> None:
        self.loss_scaler.scale(loss_sum).backward()

    def _accumulate(self, step: Step, backward: Callable[[Tensor], None]) -> tuple[Tensor, Names]:
        """Runs every micro-batch; returns this rank's totals as LateReport expects them.

        backward: called with the summed loss of each.
        """
        passes: list[TrainingPass] = []
        last = (step.num_passes or self.runtime.num_passes(len(step.micro_batches))) - 1
        for index in range(last + 1):
            number = min(index, len(step.micro_batches) - 1)
            batch = step.micro_batches[number]
            counts = index < len(step.micro_batches) and not step.padding  # otherwise it only joins the collectives
            # dropout uses torch's global generator; seeded so that a resumed run draws the same masks
            seed = torch_seed(self.settings.seed, self.step, index, self.runtime.rank, "dropout")
            seed_device(seed, self.runtime.device)
            with self.runtime.accumulate(index == last, counts):
                if self.graphs and counts:
                    passes.append(self.graphs.run(batch, step.kinds[number]))
                else:
                    passes.append(self._pass(batch, backward, counts, waits=index == last))
        names = Names(("stop", *self.actions), passes[-1].metrics)
        count = sum(each.num_samples for each in passes)
        return totals_of([each.sums for each in passes], count, self._requested(), names), names

    def run_pass(self, batch: Any) -> TrainingPass:
        """Adds the gradients of a micro-batch, without anything that changes from step to step but is not a tensor."""
        return self._pass(batch, self._backward)

    def _pass(
        self, batch: Any, backward: Callable[[Tensor], None], counts: bool = True, waits: bool = False
    ) -> TrainingPass:
        """counts: whether its samples do. waits: whether the backward pass waits for slower ranks."""
        with self.autocast():
            loss_sum, count, metrics = self.step_fn(self._call, batch)
        if not counts:
            loss_sum, count = loss_sum * 0, 0
            metrics = {name: value * 0 for name, value in metrics.items()}
        if waits:
            self._beat()
        backward(loss_sum)
        names = tuple(sorted(metrics))
        return TrainingPass(sums_of(loss_sum, *(metrics[name] for name in names)), count, names)

    def _beat(self) -> None:
        self.runtime.heartbeat.beat(self._step_limit)

    def warm_up(self, batch: Any, counts: bool = True) -> None:
        """Runs a forward and backward pass, on all ranks, that leaves gradients and buffers unchanged."""
        self._needs_warm_up = False
        with preserve_buffers(self.model), self.runtime.accumulate(last=True, counts=counts):
            self._pass(batch, Tensor.backward)
        self.optimizer.clear_gradients()

    def _gradients(self) -> list[Tensor]:
        return [param.grad for param in self.trainable.values() if param.grad is not None]

    def _gradient_divisor(self, totals: Tensor) -> Tensor:
        """What `.grad` is divided by to give the gradient of the mean loss (scalar, float64)."""
        count, scale = totals[COUNT], self.runtime.gradient_scale
        divisor = count if scale == 1 else count / scale
        return divisor * self.loss_scaler.value if self.loss_scaler.enabled else divisor

    def autocast(self) -> AbstractContextManager:
        # a graph makes its own casts, and what runs beside it is to add up gradients in the same precision
        return autocast(self.runtime.device, self.settings.mixed_precision, keeps_casts=self.graphs is None)

    def _apply_gradients(
        self, optimizer: LoopOptimizer, gradients: list[Tensor], divisor: Tensor, norm: Tensor, skipped: Tensor
    ) -> None:
        """Clips and steps, unless `skipped`.

        divisor: see `_gradient_divisor`. norm: of the gradient of the mean loss.
        """
        max_norm = self.settings.max_grad_norm
        if max_norm:
            divisor = divisor * ((norm + 1e-6) / max_norm).clamp(min=1.0)
        if self._divides_gradients(optimizer):
            with self._dividing_in_kernel(optimizer, divisor, skipped):
                optimizer.step(self.step)
        elif not skipped.item():  # a sync, but non-fused optimizers make several anyway
            self._divide(gradients, divisor)
            optimizer.step(self.step)

    def _divides_gradients(self, optimizer: LoopOptimizer) -> bool:
        return optimizer.supports_grad_scale and not self._has_float64

    @contextmanager
    def _dividing_in_kernel(self, optimizer: LoopOptimizer, divisor: Tensor, skipped: Tensor) -> Iterator[None]:
        # Fused optimizers divide by grad_scale and honor found_inf inside their kernel (torch.amp.GradScaler passes
        # them the same way). This saves a pass over the gradients, and the sync to decide whether to skip.
        fused: Any = optimizer.torch  # torch declares neither attribute
        fused.grad_scale = divisor.float()
        fused.found_inf = skipped.float()
        try:
            yield
        finally:  # a program may step its optimizer itself later
            del fused.grad_scale, fused.found_inf

    def _divide(self, gradients: list[Tensor], divisor: Tensor) -> None:
        factor = divisor.reciprocal()
        # at least float32: rounding the factor to bf16 would be off by up to 0.2 %
        torch._foreach_mul_(gradients, factor.to(torch.promote_types(gradients[0].dtype, torch.float32)))

    # --- between steps --------------------------------------------------------------------------------------------

    def _requested(self) -> frozenset[str]:
        """Requests from this rank; the all-reduce shares them.

        Commands and timers reach only rank 0, a signal may reach any rank.
        """
        requested = self.commands.take()
        if not self.runtime.is_main:
            return requested
        return requested | {name for name, action in self.actions.items() if action.trigger.due_by_clock()}

    def _after_step(self, step: Step) -> bool:
        """Runs the actions that are due and returns whether to stop. All ranks decide the same."""
        triggers = {name: action.trigger for name, action in self.actions.items()}
        self._run_actions({n for n, t in triggers.items() if t.due_after(self.step, step.epoch, step.ends_epoch)})
        return "stop" in self._agreed

    def _run_actions(self, due: set[str]) -> None:
        """Runs the actions in `due` and those that were requested, in order."""
        for name, action in self.actions.items():
            if name in due or name in self._agreed:
                self.flush()
                self._agreed.discard(name)
                action.trigger.fired()
                self.run_on_all_ranks(action.phase, action.run)
                if self.graphs:
                    self.graphs.check_places()
                self._last_time = time.perf_counter()

    def run_on_all_ranks(self, phase: Phase, run: Callable[[], None]) -> None:
        """Calls `run` on every rank and waits for all of them without a collective: it may take long on some ranks."""
        with self.runtime.heartbeat.phase(phase):
            run()
        self.runtime.barrier(phase)

    def _read_late(self) -> None:
        """Reads and reports the results of the previous step, if any."""
        report, self._late = self._late, None
        if report is None:
            return
        figures = report.read()
        self._agreed |= figures.requests
        if figures.loss is not None:
            self._smooth_loss.add(figures.loss)
        if self._fused and figures.has_bad_gradient:
            raise TrainingError(
                f"A gradient of step {report.number} was not finite, and with optimizer.fused_backward other weights "
                "were updated already: resume from the last backup with a lower optimizer.learning_rate, or without "
                "optimizer.fused_backward, which skips such steps."
            )
        self._note_skipped(figures.loss is None, report.number)
        memory_bytes, peak_memory_bytes = self._memory.read()
        self.callbacks.on_step(
            StepInfo(
                epoch=report.step.epoch + 1,
                step=report.number,
                steps_total=self.total_steps,
                loss=figures.loss,
                smooth_loss=self._smooth_loss.value,
                lr=next(iter(report.learning_rates.values())),
                samples=figures.samples,
                seconds=report.seconds,
                grad_norm=figures.grad_norm,
                metrics={**figures.metrics, **{f"lr/{name}": lr for name, lr in report.learning_rates.items()}},
                data_seconds=report.data_seconds,
                device=self.runtime.device_label,
                memory_bytes=memory_bytes,
                peak_memory_bytes=peak_memory_bytes,
                counts=figures.counts,
            )
        )

    def _seconds_since_last(self) -> float:
        now = time.perf_counter()
        seconds, self._last_time = now - self._last_time, now
        return seconds

    def _timed(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Yields `steps`; sets `_data_seconds` to the time that training waited for the step."""
        iterator = iter(steps)
        while True:
            before = time.perf_counter()
            step = next(iterator, None)
            self._data_seconds = time.perf_counter() - before
            if step is None:
                return
            yield step

    def _note_skipped(self, skipped: bool, number: int) -> None:
        if not skipped:
            self._skipped_in_a_row = 0
            return
        self._skipped_in_a_row += 1
        # with fp16, skipped steps are part of dynamic loss scaling
        if self.runtime.is_main and not self.loss_scaler.enabled:
            self.callbacks.on_warning(f"Step {number} was skipped: its loss or gradient is not finite.")
        if self._skipped_in_a_row >= MAX_SKIPPED_STEPS:
            raise TrainingError(
                f"{MAX_SKIPPED_STEPS} steps in a row had a loss or gradient that was not finite: "
                f"{self.settings.remedy_for_nan}."
            )
