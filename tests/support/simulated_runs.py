"""The simulated GPU, for tests/scripts/test_memory.py and test_simulated_gpu.py, in a process of its own: a device in
Python is for good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from unittest import mock

from modules.config.files import apply_overrides, config_from_values
from modules.config.presets import load_preset


def simulated(_: Any, preset: str, changes: Sequence[str] = ()) -> dict[str, int]:
    """The fields of its Simulation. changes: "path=value"."""
    from scripts.simulated_run import simulate

    return asdict(simulate(config_from_values(apply_overrides(load_preset(preset), changes))))


def operations_of_layers(_: Any) -> list[str]:
    """The names of the operations that reach the simulated GPU in a pass through layers with kernels on CUDA."""
    import torch
    from torch.nn import functional as F

    from scripts import simulated_gpu
    from scripts.simulated_gpu import GPU

    run, seen = simulated_gpu._run, []

    def watched(function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        seen.append(function.name().removeprefix("aten::"))
        return run(function, args, kwargs)

    with mock.patch.object(simulated_gpu, "_run", watched):
        values = torch.empty(4, 8, device=GPU, requires_grad=True)
        scale = torch.empty(8, device=GPU, requires_grad=True)
        F.mish(F.silu(F.rms_norm(values, [8], scale))).sum().backward()
    assert None not in (values.grad, scale.grad)
    return seen


def dtypes_under_autocast(_: Any) -> dict[str, str]:
    """Of what operations give for bfloat16 values, by name."""
    import torch
    from torch.nn import functional as F

    from scripts.simulated_gpu import GPU

    values = torch.empty(1, 1, 4, 4, device=GPU, dtype=torch.bfloat16)
    weight = torch.empty(4, 4, device=GPU)
    with torch.autocast(GPU.type, torch.bfloat16):
        results = {
            "linear": F.linear(values.float(), weight),
            "mean": values.mean(-1),
            "sum": values.sum(-1),
            "rms_norm": F.rms_norm(values, [4]),
            "interpolate": F.interpolate(values, scale_factor=2.0),
            "addcmul": torch.addcmul(values, values, values.float()),
            "silu": F.silu(values),
        }
    return {name: str(value.dtype).removeprefix("torch.") for name, value in results.items()}


def workspaces_of_convolutions(_: Any) -> list[int]:
    """What is taken beside the tensors while 128 x 128 values of 8 channels are convolved in one group, then in 8."""
    import torch
    from torch.nn import functional as F

    from scripts.simulated_gpu import GPU, MEMORY

    found = []
    for groups in (1, 8):
        MEMORY.forget()
        values = torch.empty(1, 8, 128, 128, device=GPU)
        weight = torch.empty(128, 8 // groups, 1, 1, device=GPU)
        result = F.conv2d(values, weight, groups=groups)
        found.append(MEMORY.peak - values.nbytes - weight.nbytes - result.nbytes)
        del values, weight, result
    return found


def gradients_before_a_step(_: Any, num_micro_batches: int) -> float:
    """The bytes taken before the last micro-batch of a step, for each byte of weights that train in bfloat16."""
    from types import SimpleNamespace

    import torch

    from modules.config.OptimizerConfig import OptimizerConfig
    from modules.config.ScheduleConfig import ScheduleConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.trainer.LoopOptimizer import ScheduledOptimizer
    from modules.trainer.optimizers import ParamGroup
    from scripts import simulated_run
    from scripts.simulated_gpu import GPU, MEMORY

    MEMORY.forget()
    weight = torch.nn.Parameter(torch.empty(1024, 1024, device=GPU, dtype=torch.bfloat16))
    config = TrainConfig(
        gradient_accumulation_steps=num_micro_batches,
        optimizer=OptimizerConfig(name="adafactor", stochastic_rounding=True),
    )
    optimizer = ScheduledOptimizer(config.optimizer, ScheduleConfig(), [ParamGroup("all", [weight])], 100)
    simulated_run._make_state(config, SimpleNamespace(trainable={"weight": weight}, optimizer=optimizer))
    state = sum(simulated_run._nbytes(value) for value in optimizer.torch.state.values())
    return round((MEMORY.now - weight.nbytes - state) / weight.nbytes, 2)
