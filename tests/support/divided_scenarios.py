"""Scenarios that the tests of divided optimizer state run on every rank; see RankPool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from modules.config.errors import ConfigError
from modules.config.files import load_config
from modules.config.OptimizerConfig import OptimizerConfig
from modules.trainer.Step import Step
from tests.support.make_loop import make_loop
from tests.support.rank_scenarios import WatchedTrainer, digest, squared_error

if TYPE_CHECKING:
    from tests.support.RankPool import MakeRuntime

SETTINGS = {"divides_updates": True}


def train_net(make_runtime: MakeRuntime, optimizer: str, divides: bool) -> dict[str, Any]:
    """The weights after some steps of a small net, and the parameters whose state this rank holds."""
    runtime = make_runtime(divides_updates=divides)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(70, 70), nn.Tanh(), nn.Linear(70, 90), nn.Tanh(), nn.Linear(90, 3))
    config = OptimizerConfig(name=optimizer, learning_rate=1e-2)
    loop = make_loop(model, squared_error, optimizer=config, runtime=runtime)
    generator = torch.Generator().manual_seed(runtime.rank)
    loop.fit(Step([torch.randn(4, 70, generator=generator)]) for _ in range(4))
    names = {param: name for name, param in loop.trainable.items()}
    states = loop.optimizer.torch.state.items()
    return {"digest": digest(loop.trainable), "holds": [names[param] for param, state in states if state]}


def held_state(make_runtime: MakeRuntime, config: str) -> dict[str, int]:
    """Bytes of the optimizer's state on this rank, without its step counters, and of all trained weights."""
    trainer = WatchedTrainer(load_config(config), make_runtime(**SETTINGS))
    trainer.start()
    trainer.train()
    tensors = [value for state in trainer.loop.optimizer.torch.state.values() for value in state.values()]
    weights = sum(param.nbytes for param in trainer.loop.trainable.values())
    return {"state": sum(one.nbytes for one in tensors if one.dim()), "weights": weights}


def refuse_own_workspace(make_runtime: MakeRuntime, config: str) -> str:
    settings, runtime = load_config(config), make_runtime(**SETTINGS)
    settings.workspace_dir += f"-{runtime.rank}"
    return _refusal(settings, runtime)


def refuse_start(make_runtime: MakeRuntime, config: str) -> str:
    return _refusal(load_config(config), make_runtime(**SETTINGS))


def _refusal(settings: Any, runtime: Any) -> str:
    with pytest.raises(ConfigError) as error:
        WatchedTrainer(settings, runtime).start()
    return str(error.value)
