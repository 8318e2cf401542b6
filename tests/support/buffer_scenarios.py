"""Scenarios that the tests of buffers run on every rank; see RankPool."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from modules.trainer.Step import Step
from tests.support.make_loop import make_loop
from tests.support.rank_scenarios import counted, squared_error
from tests.support.RankPool import MakeRuntime


class Counting(nn.Module):
    """Changes its buffers in every pass: `seen` equally on all ranks, `average` and `values` by the rank's own inputs.

    `drawn` stays as each rank has drawn it; `late` changes from the sixth pass on.
    """

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.register_buffer("drawn", torch.randn(2))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(2))
        self.register_buffer("values", torch.zeros(2, 3, dtype=torch.complex64).t())
        self.register_buffer("late", torch.zeros((), dtype=torch.int16))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen += 1
        self.average = 0.9 * self.average + 0.1 * inputs.mean(0)
        self.values.data[1:] += inputs.sum()
        self.scratch.copy_(inputs[0])
        if self.seen > 5:
            self.late += int(inputs.sum())
        return self.linear(inputs * self.drawn)


def train_counting(make_runtime: MakeRuntime, steps: int) -> list[dict[str, Any]]:
    """The buffers after each step, and the broadcasts in it; rank r trains on inputs of r + 1."""
    runtime = make_runtime()
    torch.manual_seed(runtime.rank)
    loop = make_loop(Counting(), squared_error, steps, runtime=runtime)
    found = [{"drawn": loop.model.drawn.tolist()}]
    for _ in range(steps):
        counts = {"broadcast": 0}
        with counted(torch.distributed, "broadcast", counts):
            loop.train_step(Step([torch.full((2, 2), runtime.rank + 1.0)]))
        buffers = {name: torch.view_as_real(b + 0j).tolist() for name, b in loop.model.named_buffers()}
        found.append(buffers | counts)
    return found
