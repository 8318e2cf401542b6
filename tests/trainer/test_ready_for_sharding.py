"""What a sharding runtime will rely on: when parameters are referenced, and which calls all ranks make."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn

from modules.config.EmaConfig import EmaConfig
from modules.config.OptimizerConfig import OptimizerConfig
from modules.distributed.placeholders import has_placeholders
from modules.distributed.Runtime import Runtime
from modules.families.registry import FAMILIES
from modules.session.TrainCommands import TrainCommands
from modules.trainer.GenericTrainer import GenericTrainer
from modules.trainer.rank_checks import weights_digest
from modules.trainer.Step import Step
from modules.weights.BaseModel import BaseModel
from modules.weights.safe import load_tensors, save_tensors
from tests.support.make_loop import make_loop
from tests.support.Recorder import Recorder

CPU = torch.device("cpu")


class ReplacingRuntime(Runtime):
    """Replaces the model's parameters, like `fully_shard`, and computes the norm by itself."""

    def prepare(self, module, unused_parameters=False):
        for part in module.modules():
            for name, param in list(part.named_parameters(recurse=False)):
                setattr(part, name, nn.Parameter(param.detach().clone(), requires_grad=param.requires_grad))
        return module

    def gradient_norm(self, gradients):
        return 2 * super().gradient_norm(gradients)


class RecordingRuntime(Runtime):
    """Rank `rank` of two identical ranks; records the calls that all ranks must make."""

    def __init__(self, rank: int):
        super().__init__(CPU)
        self.rank, self.world_size, self.local_world_size = rank, 2, 2
        self.calls: list[str] = []

    def gather(self, value, why):
        return [value] * 2

    def full_tensors(self, tensors):
        self.calls.append("full tensors")
        return tensors

    def full_copies(self, modules, with_frozen):
        self.calls.append(f"full copies of {', '.join(modules)}")
        return {}

    def replicated(self, tensors):
        self.calls.append("replicated")
        return tensors


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def squared(model, inputs):
    return model(inputs).square().sum(), len(inputs), {}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "adafactor", "schedule_free", "lion"])
def test_the_parameters_after_prepare_are_trained(optimizer):
    config = OptimizerConfig(name=optimizer, learning_rate=1e-2, max_grad_norm=0.0)
    steps = [Step([torch.randn(4, 4, generator=torch.Generator().manual_seed(i))]) for i in range(4)]
    states, norms = [], []
    for runtime in (Runtime(CPU), ReplacingRuntime(CPU)):
        recorder = Recorder()
        ema = EmaConfig(enabled=True, decay=0.5)
        loop = make_loop(small_net(), squared, optimizer=config, ema=ema, runtime=runtime, callbacks=recorder)
        loop.fit(steps)
        tensors, _ = loop.state()
        states.append({f"{file}/{name}": value for file, group in tensors.items() for name, value in group.items()})
        norms.append([info.grad_norm for info in recorder.steps])
        assert not torch.equal(dict(loop.model.named_parameters())["0.weight"], small_net()[0].weight)
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert norms[1] == pytest.approx([2 * norm for norm in norms[0]])


def test_a_model_to_be_sharded_stays_on_the_cpu_until_then(make_config, monkeypatch):
    loaded = {}
    require = BaseModel.require

    def watched(base, *names, on_device=True, **options):
        loaded.update(dict.fromkeys(names, on_device))
        require(base, *names, on_device=on_device, **options)

    monkeypatch.setattr(BaseModel, "require", watched)
    runtime = RecordingRuntime(0)
    monkeypatch.setattr(RecordingRuntime, "shards", True)
    GenericTrainer(make_config(), Recorder(), TrainCommands(), runtime).start()
    assert loaded["unet"] is False
    assert loaded["vae"] is True  # for caching


def test_a_digest_covers_weights_that_are_still_in_their_files(make_config, tiny_sd15, tmp_path):
    folder = shutil.copytree(tiny_sd15, tmp_path / "other")
    file = folder / "unet" / "diffusion_pytorch_model.safetensors"
    tensors = {name: value.clone() for name, value in load_tensors(file).items()}
    tensors["conv_out.bias"][0] += 1
    save_tensors(file, tensors)
    digests = []
    for path in (tiny_sd15, tiny_sd15, folder):
        base = BaseModel(FAMILIES["sd15"], make_config(f"model.base={path}").model, CPU)
        base.require("unet", on_device=False, lazily=True)
        assert has_placeholders(base.module("unet"))
        digests.append(weights_digest(base, Runtime(CPU)))
    assert digests[0] == digests[1] != digests[2]


CALLS = {  # action -> the calls that every rank makes in it
    "backup": ["full tensors"] * 3,
    "save": ["full copies of unet"],
    "check": ["replicated"],
}


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_makes_the_calls_that_sharding_needs(rank, make_config):
    runtime = RecordingRuntime(rank)
    trainer = GenericTrainer(make_config("ema.enabled=true"), Recorder(), TrainCommands(), runtime)
    trainer.start()
    found = {}
    for name in CALLS:
        runtime.calls.clear()
        trainer.loop.actions[name].run()
        found[name] = list(runtime.calls)
    assert found == CALLS
    runtime.calls.clear()
    trainer.end()
    # of the model before the first is written: rank 0 may write long after the others
    assert runtime.calls == [*CALLS["backup"], *CALLS["save"]]
