"""Scenarios that the tests of training options run on every rank; see RankPool."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from modules.config.files import load_config
from modules.config.OptimizerConfig import OptimizerConfig
from modules.session.TrainCommands import TrainCommands
from modules.trainer.GenericTrainer import GenericTrainer
from modules.trainer.Step import Step
from tests.support.make_loop import make_loop
from tests.support.RankPool import MakeRuntime
from tests.support.Recorder import Recorder


def train_and_validate(make_runtime: MakeRuntime, config: str) -> dict[str, Any]:
    """The callbacks of this rank, and the number of its validation batches."""
    recorder = Recorder()
    trainer = GenericTrainer(load_config(config), recorder, TrainCommands(), make_runtime())
    trainer.start()
    trainer.train()
    trainer.end()
    return {
        "validations": recorder.validations,
        "batches": len(trainer._validation_loss().micro_batches),
        "rounds": [str(folder) for folder, _ in recorder.rounds],
    }


def train_rounded(make_runtime: MakeRuntime, optimizer: str) -> list[list[float]]:
    """The bfloat16 weights after a few steps with stochastic rounding; each rank has its own data."""
    runtime = make_runtime()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).bfloat16()
    config = OptimizerConfig(name=optimizer, learning_rate=1e-3, stochastic_rounding=True)

    def step_fn(model, inputs):
        return model(inputs).float().square().sum(), len(inputs), {}

    loop = make_loop(model, step_fn, 4, optimizer=config, runtime=runtime)
    torch.manual_seed(runtime.rank)
    loop.fit(Step([torch.randn(2, 4).bfloat16(), torch.randn(2, 4).bfloat16()]) for _ in range(4))
    return [param.float().flatten().tolist() for param in model.parameters()]
