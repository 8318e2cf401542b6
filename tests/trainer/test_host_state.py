"""Optimizer state in system memory: the same bits as on the device, and nothing is read before it is copied."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from modules.config.EmaConfig import EmaConfig
from modules.config.OptimizerConfig import OptimizerConfig
from modules.config.optimizers import OPTIMIZERS, optimizers_that
from modules.config.ScheduleConfig import ScheduleConfig
from modules.trainer import HostState as host_state
from modules.trainer import LoopOptimizer, optimizers
from modules.trainer.optimizers import ParamGroup
from modules.trainer.Step import Step
from modules.weights.transfers import CudaTransfers
from tests.support.FakeCuda import FakeCuda
from tests.support.make_loop import make_loop
from tests.support.Recorder import Recorder

WIDTH = 64  # matrices of 64 x 64 are large enough for 8-bit state


@pytest.fixture
def cuda(monkeypatch) -> FakeCuda:
    cuda = FakeCuda(monkeypatch)
    monkeypatch.setattr(LoopOptimizer, "transfers_to", CudaTransfers)
    for module in (host_state, optimizers):
        monkeypatch.setattr(module, "SMALLEST_IN_RAM", 2**11)  # small enough for 8-bit state, too
    monkeypatch.setattr(LoopOptimizer, "PART_ELEMENTS", WIDTH * WIDTH)  # several parts
    return cuda


@pytest.fixture
def name(request) -> str:
    """The name of an optimizer; skips the test if its package is missing."""
    if package := OPTIMIZERS[request.param].package:
        pytest.importorskip(package, reason="an optional package")
    return request.param


def loop_of(in_ram: bool, dtype=torch.float32, fused=False, widths=(WIDTH,) * 5, **options):
    torch.manual_seed(1)
    layers = [layer for sizes in pairwise(widths) for layer in (nn.Linear(*sizes), nn.Tanh())]
    model = nn.Sequential(*layers).to(dtype)
    params = list(model.parameters())
    config = OptimizerConfig(
        learning_rate=1e-2, max_grad_norm=0.0 if fused else 0.5, state_in_ram=in_ram, fused_backward=fused, **options
    )
    groups = [ParamGroup("first", params[:3], 3e-2, stops_after=2), ParamGroup("rest", params[3:])]
    return make_loop(
        model, squared_error, optimizer=config, groups=groups, schedule=ScheduleConfig(name="cosine"),
        ema=EmaConfig(enabled=True), callbacks=Recorder(), fused_backward=fused,
    )  # fmt: skip


def squared_error(model, batch):
    return (model(batch) - 1).float().square().mean(1).sum(), len(batch), {}


def steps(count: int, dtype=torch.float32, first: int = 0) -> list[Step]:
    return [
        Step([torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(number)).to(dtype)])
        for number in range(first, count)
    ]


def same_state(one, other) -> bool:
    (tensors, data), (expected, expected_data) = one.state(), other.state()
    return data == expected_data and all(
        tensors[file].keys() == expected[file].keys()
        and all(torch.equal(value, expected[file][name]) for name, value in tensors[file].items())
        for file in expected
    )


ALONE = optimizers_that(lambda facts: facts.steps_alone)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", ALONE, indirect=True)
def test_curve_weights_and_state_are_those_with_the_state_on_the_device(name, fused, cuda):
    moved, plain = loop_of(True, fused=fused, name=name), loop_of(False, fused=fused, name=name)
    moved.fit(steps(5))
    plain.fit(steps(5))
    assert moved.callbacks.losses == plain.callbacks.losses
    assert same_state(moved, plain)
    assert (cuda.copies > 20) == (name != "adafactor")  # whose state is small
    assert not cuda.late.num_lost


def test_stochastic_rounding_draws_the_same_bits(cuda):
    options = {"dtype": torch.bfloat16, "name": "adamw", "stochastic_rounding": True}
    moved, plain = loop_of(True, **options), loop_of(False, **options)
    moved.fit(steps(4, torch.bfloat16))
    plain.fit(steps(4, torch.bfloat16))
    assert moved.callbacks.losses == plain.callbacks.losses
    assert same_state(moved, plain)


@pytest.mark.parametrize(("before", "after"), [(True, True), (True, False), (False, True)])
def test_a_run_resumes_exactly_wherever_the_state_is(before, after, cuda):
    straight, first, resumed = loop_of(False, name="adamw"), loop_of(before, name="adamw"), loop_of(after, name="adamw")
    straight.fit(steps(5))
    first.fit(steps(3))
    tensors, data = first.state()
    resumed.load_state({file: {n: t.clone() for n, t in group.items()} for file, group in tensors.items()}, data)
    resumed.fit(steps(5, first=3))
    assert resumed.callbacks.losses == straight.callbacks.losses[3:]
    assert same_state(resumed, straight)


def test_a_missing_wait_is_noticed(cuda, monkeypatch):
    loop = loop_of(True, name="adamw")
    loop.fit(steps(1))
    monkeypatch.setattr(CudaTransfers, "finish", lambda self, copy: None)
    loop.fit(steps(3, first=1))
    assert any(param.isnan().any() for param in loop.trainable.values())


def test_room_on_the_device_that_grows_is_not_freed_while_it_is_copied_from(cuda):
    widths = [WIDTH * number for number in (1, 1, 2, 3, 4)]  # each matrix is larger than the one before
    moved, plain = loop_of(True, widths=widths, name="adamw"), loop_of(False, widths=widths, name="adamw")
    moved.fit(steps(3))
    plain.fit(steps(3))
    assert same_state(moved, plain)
    assert not cuda.late.num_lost


def test_the_device_has_room_for_two_parts(cuda):
    loop = loop_of(True, name="adamw")
    loop.fit(steps(3))
    (state,) = [value for value in vars(loop.optimizer).values() if isinstance(value, host_state.HostState)]
    assert [slot.numel() for slot in state._slots] == [2 * 4 * WIDTH * WIDTH] * 2


@pytest.mark.parametrize("most_pinned", [None, 2**14])
@pytest.mark.parametrize("name", ["adamw", "sgd"])  # the state of SGD is made before the first step
def test_little_more_than_the_state_is_pinned_and_a_refusal_changes_no_result(name, most_pinned, cuda, monkeypatch):
    monkeypatch.setattr("modules.weights.HostMemory.SLAB_BYTES", 2**14)
    monkeypatch.setattr("modules.weights.HostMemory.LEAST_SLAB_BYTES", 2**10)
    monkeypatch.setattr("modules.weights.HostMemory._TENSORS_PER_SLAB", 1)
    cuda.most_pinned = most_pinned
    moved, plain = loop_of(True, name=name), loop_of(False, name=name)
    moved.fit(steps(4))
    plain.fit(steps(4))
    assert moved.callbacks.losses == plain.callbacks.losses
    assert same_state(moved, plain)
    state = (2 if name == "adamw" else 1) * 4 * 4 * WIDTH * WIDTH  # of four matrices
    least, most = (state, 1.05 * state) if most_pinned is None else (most_pinned, most_pinned)
    assert least <= cuda.memory.num_bytes <= most
    assert bool(cuda.memory.warning) is (most_pinned is not None)
