"""A run on the pretended GPU, with a mistake planted in it if wanted, for tests/trainer/test_pretended_gpu.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
from torch import nn

from modules.config.EmaConfig import EmaConfig
from modules.config.files import load_config
from modules.config.OptimizerConfig import OptimizerConfig
from modules.data.Batch import Batch
from modules.distributed.Runtime import Runtime
from modules.families import latents
from modules.layers import ActivationOffload
from modules.layers.transfers import CudaTransfers
from modules.methods.DenoisingLoss import DenoisingLoss
from modules.sampling import SamplePrompts
from modules.session.TrainCommands import TrainCommands
from modules.trainer import HostState, LoopOptimizer, optimizers
from modules.trainer.Ema import Ema
from modules.trainer.GenericTrainer import GenericTrainer
from modules.trainer.LateReport import LateReport
from modules.trainer.Step import Step
from modules.trainer.TrainingLoop import TrainingLoop
from tests.support.make_loop import make_loop
from tests.support.Recorder import Recorder
from tests.support.small_inputs import shrink_inputs

WIDTH = 64


def run(_: Any, config: str, mistake: str = "", on_cpu: bool = False, resumes: bool = False) -> dict[str, Any]:
    """Trains by the settings in the file `config`, from start to end; every step must not wait for the GPU.

    mistake: the name of one in MISTAKES. on_cpu: the same run without the GPU, to compare. resumes: from the backup in
    the run's folder.
    """
    from tests.support import pretended_gpu  # not in the process of the tests, which this module is imported in, too

    settings = load_config(config)
    shrink_inputs(settings.family)
    pretended_gpu.begin_run()
    device = torch.device("cpu") if on_cpu else pretended_gpu.GPU
    trainer = GenericTrainer(settings, Recorder(), TrainCommands(), Runtime(device), resume=resumes)
    error = ""
    with (
        mock.patch.object(TrainingLoop, "train_step", _unwaiting(TrainingLoop.train_step, pretended_gpu.no_waits)),
        mock.patch.object(ActivationOffload, "LEAST_BYTES", 1),
        mock.patch.object(HostState, "SMALLEST_IN_RAM", 2**10),
        mock.patch.object(optimizers, "SMALLEST_IN_RAM", 2**10),
        mock.patch.object(LoopOptimizer, "PART_ELEMENTS", 2**14),
        MISTAKES[mistake]() if mistake else nullcontext(),
    ):
        try:
            trainer.start()
            trainer.train()
            trainer.end()
        except (AssertionError, ValueError) as found:
            if not mistake:
                raise
            error = str(found)
    recorder = trainer.callbacks
    return {
        "error": error,
        "losses": [step.loss for step in recorder.steps],
        "validations": [loss for *_, loss, _ in recorder.validations],
        "samples": len(recorder.samples),
        "warnings": recorder.warnings,
        "waits": sorted(pretended_gpu.waits_elsewhere),
        "copies": sum(late.num_started for late in pretended_gpu.late_copies),
        "lost_copies": sum(late.num_lost for late in pretended_gpu.late_copies),
    }


def optimize(_: Any, name: str, may_wait: list[str]) -> dict[str, Any]:
    """Trains a small module with an optimizer; may_wait: names of functions of ours.

    Returns {"straight": losses of the last steps, "resumed": the same after a resume, "waits": files that waited}.
    """
    from tests.support import pretended_gpu

    pretended_gpu.begin_run()
    pretended_gpu.may_wait.update(may_wait)
    config = OptimizerConfig(name=name, learning_rate=1e-2, max_grad_norm=0.5)
    with mock.patch.object(TrainingLoop, "train_step", _unwaiting(TrainingLoop.train_step, pretended_gpu.no_waits)):
        straight = _small_loop(config, pretended_gpu.GPU)
        straight.fit(_steps(0, 2))
        tensors, data = straight.state()
        saved = {file: {key: value.cpu().clone() for key, value in group.items()} for file, group in tensors.items()}
        straight.fit(_steps(2, 4))
        resumed = _small_loop(config, pretended_gpu.GPU)
        resumed.load_state(saved, json.loads(json.dumps(data)))
        resumed.fit(_steps(2, 4))
    losses = [loop.callbacks.losses for loop in (straight, resumed)]
    return {"straight": losses[0][2:], "resumed": losses[1], "waits": sorted(pretended_gpu.waits_elsewhere)}


def _small_loop(config: OptimizerConfig, device: torch.device) -> TrainingLoop:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    runtime, callbacks = Runtime(device), Recorder()
    return make_loop(
        model, _squared_error, optimizer=config, ema=EmaConfig(enabled=True), runtime=runtime, callbacks=callbacks
    )


def _squared_error(model: nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, int, dict[str, torch.Tensor]]:
    device = next(model.parameters()).device
    return (model(batch.to(device, non_blocking=True)) - 1).square().mean(1).sum(), len(batch), {}


def _steps(first: int, end: int) -> list[Step]:
    draws = [torch.Generator().manual_seed(number) for number in range(first, end)]
    return [Step([torch.randn(4, WIDTH, generator=draw).pin_memory()]) for draw in draws]


def _unwaiting(train_step: Callable[..., None], no_waits: Callable[[], Any]) -> Callable[..., None]:
    def unwaiting(*args: Any) -> None:
        with no_waits():
            train_step(*args)

    return unwaiting


# --- mistakes ---------------------------------------------------------------------------------------------------------


def _in_the_loss(mistake: Callable[[Batch, torch.Tensor], Any]) -> Callable[[], Any]:
    """A mistake made with the batch and the losses of its samples; what it returns replaces the losses."""
    own = DenoisingLoss._losses

    def losses(self: DenoisingLoss, batch: Batch, *args: Any) -> torch.Tensor:
        values = own(self, batch, *args)
        changed = mistake(batch, values)
        return values if changed is None else changed

    return lambda: mock.patch.object(DenoisingLoss, "_losses", losses)


def _ema_on_the_cpu() -> Any:
    own = Ema.__init__

    def init(self: Ema, params: dict[str, Any], *args: Any) -> None:
        own(self, {name: param.cpu() for name, param in params.items()}, *args)
        self._parts = [(list(params.values()), list(self.averages.values()))]

    return mock.patch.object(Ema, "__init__", init)


def _statistics_on_the_cpu() -> Any:
    statistics = torch.zeros(1, 4, 1, 1), torch.ones(1, 4, 1, 1)
    return mock.patch.object(latents, "_stats", return_value=statistics)


def _prompts_on_the_cpu() -> Any:
    own = SamplePrompts._moved
    return mock.patch.object(SamplePrompts, "_moved", lambda values, device: own(values, torch.device("cpu")))


def _report_read_too_soon() -> Any:
    def late_report(*args: Any) -> LateReport:
        report = LateReport(*args)
        report.read()
        return report

    return mock.patch("modules.trainer.TrainingLoop.LateReport", late_report)


def _activations_freed_too_soon() -> Any:
    own = ActivationOffload.ActivationOffload._let_go

    def let_go(self: ActivationOffload.ActivationOffload, besides: Any = ()) -> None:
        for kept in self._leaving.keys() - set(besides):
            kept.values = None
        own(self, besides)

    return mock.patch.object(ActivationOffload.ActivationOffload, "_let_go", let_go)


def _unordered_copy(self: CudaTransfers, target: torch.Tensor, source: torch.Tensor) -> Any:
    with torch.cuda.stream(self._stream):
        target.copy_(source, non_blocking=True)
    return self._stream.record_event()


MISTAKES: dict[str, Callable[[], Any]] = {
    "CPU in the step": _in_the_loss(lambda batch, losses: losses * torch.ones(len(losses))),
    "CPU in the EMA": _ema_on_the_cpu,
    "CPU in caching": _statistics_on_the_cpu,
    "CPU in sampling": _prompts_on_the_cpu,
    "dtype": _in_the_loss(lambda batch, losses: losses @ torch.ones_like(losses).double()),
    "item": _in_the_loss(lambda batch, losses: losses * losses[0].item()),
    "cpu": _in_the_loss(lambda batch, losses: losses.cpu().to(losses.device)),
    "bool": _in_the_loss(lambda batch, losses: losses if losses[0] > 0 else -losses),
    "print": _in_the_loss(lambda batch, losses: print(losses)),
    "mask": _in_the_loss(lambda batch, losses: losses[losses > 0]),
    "blocking copy": _in_the_loss(lambda batch, losses: losses * torch.ones(len(losses)).to(losses.device)),
    "event of the step": _report_read_too_soon,
    "activations waited for": lambda: mock.patch.object(CudaTransfers, "start", lambda _, to, source: to.copy_(source)),
    "activations copied at once": lambda: mock.patch.object(CudaTransfers, "start", _unordered_copy),
    "activations freed too soon": _activations_freed_too_soon,
    "activations read too soon": lambda: mock.patch.object(CudaTransfers, "finish"),
    "no event": lambda: mock.patch("tests.support.pretended_gpu.Event.synchronize"),
}
