"""Sets up CUDA graphs for the passes of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.config.counted import counted
from modules.machine.devices import is_gpu
from modules.methods.registry import METHODS
from modules.trainer.CudaCapture import CudaCapture
from modules.trainer.PassGraphs import Capture, PassGraphs

if TYPE_CHECKING:
    import torch

    from modules.config.TrainConfig import TrainConfig
    from modules.session.TrainCallbacks import TrainCallbacks
    from modules.trainer.PreparedRun import PreparedRun
    from modules.trainer.TrainingLoop import TrainingLoop


def captures(config: TrainConfig) -> bool:
    """Whether the run replays passes as graphs. "auto" stands for off as long as no gain has been measured."""
    return config.model.cuda_graphs == "on" and METHODS[config.method].facts.uses_denoiser


def capture_on(device: torch.device) -> Capture | None:
    """None where there are no such graphs."""
    return CudaCapture(device) if is_gpu(device) else None


def graphs_for(run: PreparedRun, loop: TrainingLoop, callbacks: TrainCallbacks) -> PassGraphs | None:
    """Those of the steps that are left; None for a run without."""
    if not captures(run.config):
        return None
    capture = capture_on(loop.runtime.device)
    if capture is None:
        callbacks.on_warning("model.cuda_graphs on: only NVIDIA and AMD GPUs have them, so that steps run without.")
        return None
    left, runtime = loop.total_steps - loop.step, loop.runtime
    planned = run.plan.expected_passes(
        loop.epoch, loop.step_in_epoch, left, runtime.rank, runtime.world_size, run.accumulation
    )
    can_draw = not run.config.model.gradient_checkpointing
    graphs = PassGraphs(loop.model, loop.run_pass, capture, planned, can_draw, callbacks.on_warning)
    kinds = f"{len(graphs.worthwhile)} of {counted(len(planned), 'kind')} of micro-batches"
    if runtime.is_main:
        callbacks.on_status(f"CUDA graphs: worth capturing for {kinds}")
    return graphs
