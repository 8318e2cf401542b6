"""Layers that cast the weights of their block at once, beside autocast."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from modules.layers.block_casts import cast_by_block
from modules.trainer.Step import Step
from tests.support.make_loop import make_loop


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(6, 6, 3, padding=1), nn.GroupNorm(2, 6)
        self.first, self.second = nn.Linear(10, 14), nn.Linear(14, 10, bias=False)

    def forward(self, values):
        return values + self.second(nn.functional.silu(self.first(self.norm(self.conv(values)))))


class Model(nn.Module):
    def __init__(self, checkpoints):
        super().__init__()
        torch.manual_seed(0)
        self.inlet, self.blocks = nn.Linear(10, 10), nn.ModuleList(Block() for _ in range(3))
        self.checkpoints = checkpoints

    def forward(self, values):
        values = self.inlet(values)
        for block in self.blocks:
            values = checkpoint(block, values, use_reentrant=False) if self.checkpoints else block(values)
        return values


def given():
    return torch.randn(2, 6, 8, 10, generator=torch.Generator().manual_seed(1))


def results(model):
    with torch.autocast("cpu", torch.bfloat16):
        output = model(given())
    output.float().square().mean().backward()
    return {"output": output.detach(), **{name: param.grad for name, param in model.named_parameters()}}


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("frozen", [(), ("blocks.1.conv", "blocks.2.first.weight"), ("inlet", "blocks.0", "blocks.1")])
def test_outputs_and_gradients_are_those_of_autocast_to_the_bit(checkpoints, frozen):
    model = Model(checkpoints)
    for name, param in model.named_parameters():
        param.requires_grad_(not name.startswith(frozen) if frozen else True)
    cast_by_block(twin := copy.deepcopy(model))
    expected, found = results(model), results(twin)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert found[name] is value is None or torch.equal(found[name], value), name


class Casts(TorchDispatchMode):
    """How many tensors each operation has cast."""

    def __init__(self):
        super().__init__()
        self.counts = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten._to_copy.default, torch.ops.aten._foreach_copy_.default):
            self.counts.append(len(args[0]) if isinstance(args[0], (list, tuple)) else 1)
        return function(*args, **(kwargs or {}))


def test_weights_and_gradients_of_a_block_are_cast_at_once():
    counts = []
    for prepare in (lambda model: None, cast_by_block):
        model = Model(checkpoints=True)
        prepare(model)
        with Casts() as casts:
            results(model)
        counts.append(casts.counts)
    at_once = [count for count in counts[1] if count > 1]
    # 3 weights and 2 biases: in the forward pass, computed again but for those of the last block, and their gradients
    assert at_once == [2] + [5] * 3 + [5] * (2 + 3) + [2]
    assert len(counts[0]) - len(counts[1]) == sum(at_once) - len(at_once) + 5  # autocast casts the last block's again
    assert not model.inlet.copies._copies


def test_steps_train_as_with_autocast_however_the_weights_are_written():
    def losses_of(model):
        found = []

        def step_fn(model, values):
            losses = model(values).float().square().sum((1, 2, 3))
            found.append(float(losses.detach().sum()))
            return losses.sum(), len(values), {}

        loop = make_loop(model, step_fn, mixed_precision="bf16")

        def write(step):
            for param in loop.trainable.values():
                param.data.copy_(param.data - 1e-3 * param.grad)  # PyTorch does not see it

        loop.optimizer.step = write
        for _ in range(3):
            loop.train_step(Step([given()] * 2))
        return found

    model = Model(checkpoints=True)
    cast_by_block(twin := copy.deepcopy(model))
    found = losses_of(twin)
    assert found == losses_of(model)
    assert len(set(found)) == 3


def test_without_gradients_or_autocast_layers_compute_as_before():
    model = Model(checkpoints=False)
    cast_by_block(twin := copy.deepcopy(model))
    assert torch.equal(twin(given()), model(given()))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(twin(given()), model(given()))
    assert not twin.inlet.copies._copies
