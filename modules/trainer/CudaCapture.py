"""Captures passes as CUDA graphs, all in one pool of memory."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from modules.trainer.PassGraphs import Replay
from modules.trainer.TrainingPass import TrainingPass


class CudaCapture:
    """A Capture on an NVIDIA or AMD GPU."""

    def __init__(self, device: torch.device):
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._kept: list[Tensor] = []  # what graphs may read

    def watched(self, run: Callable[[], TrainingPass]) -> tuple[TrainingPass, str]:
        waits = ""
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                result = run()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        for warning in seen:
            if "synchroniz" not in str(warning.message):
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
            elif not waits:
                waits = f"{'/'.join(Path(warning.filename).parts[-3:])}:{warning.lineno}"
        return result, waits

    def random_states(self) -> tuple[Hashable, Hashable]:
        generator = torch.cuda.default_generators[self._device.index or 0]
        return generator.get_offset(), torch.get_rng_state().numpy().tobytes()

    def __call__(self, function: Callable[[Sequence[Tensor]], Tensor], inputs: Sequence[Tensor]) -> Replay:
        own = [torch.empty_like(value, device=self._device) for value in inputs]
        for target, value in zip(own, inputs, strict=True):
            target.copy_(value, non_blocking=True)
        # A module may keep what it has computed for one size, as positions, until it computes it for another.
        self._kept = [each for each in gc.get_objects() if issubclass(type(each), Tensor) and each.is_cuda]
        graph = torch.cuda.CUDAGraph()
        # thread_local: the thread that prepares batches may pin memory meanwhile
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = function(own)

        def replay(values: Sequence[Tensor]) -> Tensor:
            for target, value in zip(own, values, strict=True):
                target.copy_(value, non_blocking=True)
            graph.replay()
            return result.clone()  # the next graph may write over it

        return replay
