"""Optimizer state in system memory: the same bits as on the device, and nothing is read before it is copied."""

from __future__ import annotations

import gc
from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from modules.config.EmaConfig import EmaConfig
from modules.config.OptimizerConfig import OptimizerConfig
from modules.config.optimizers import OPTIMIZERS, optimizers_that
from modules.config.ScheduleConfig import ScheduleConfig
from modules.layers.transfers import CudaTransfers
from modules.trainer import HostState as host_state
from modules.trainer import LoopOptimizer, optimizers
from modules.trainer.optimizers import ParamGroup
from modules.trainer.Step import Step
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


def loop_of(in_ram: bool, dtype=torch.float32, fused=False, widths=(WIDTH,) * 5, bias=True, **options):
    torch.manual_seed(1)
    layers = [layer for sizes in pairwise(widths) for layer in (nn.Linear(*sizes, bias=bias), nn.Tanh())]
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
    moved.optimizer._host._ahead.clear()  # which is waited for when it goes, later than the fake
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
    # each matrix is larger than the one before, and no small state comes between them
    options = {"widths": [WIDTH * number for number in (1, 1, 2, 3, 4)], "bias": False, "name": "adamw"}
    moved, plain = loop_of(True, **options), loop_of(False, **options)
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
    monkeypatch.setattr("modules.layers.HostMemory.SLAB_BYTES", 2**14)
    monkeypatch.setattr("modules.layers.HostMemory.LEAST_SLAB_BYTES", 2**10)
    monkeypatch.setattr("modules.layers.HostMemory._TENSORS_PER_SLAB", 1)
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


# --- parameters that are stepped one by one ---------------------------------------------------------------------------


def optimizer_of(in_ram: bool, **options) -> tuple[list[nn.Parameter], LoopOptimizer.ScheduledOptimizer]:
    """Six matrices and a bias, which has no large state."""
    torch.manual_seed(1)
    params = [nn.Parameter(torch.randn(WIDTH, width)) for width in (WIDTH, 16, 48, WIDTH, 8, 32)]
    params.insert(3, nn.Parameter(torch.randn(3)))
    groups = [ParamGroup("first", params[:3], stops_after=4), ParamGroup("rest", params[3:])]
    config = OptimizerConfig(learning_rate=1e-2, fused_backward=True, max_grad_norm=0.0, state_in_ram=in_ram, **options)
    return params, LoopOptimizer.ScheduledOptimizer(config, ScheduleConfig(), groups, total_steps=10)


def step_alone(params, optimizer, order: list[int], step: int) -> None:
    optimizer.set_learning_rates(step)
    for number in order:
        param = params[number]
        param.grad = torch.randn(param.shape, generator=torch.Generator().manual_seed(10 * step + number))
        optimizer.step_alone(step, param)
        param.grad = None


@given(orders=st.lists(st.lists(st.integers(0, 6), unique=True), min_size=2, max_size=8))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_parameters_stepped_one_by_one_in_any_order_get_the_bits_of_the_state_on_the_device(orders, cuda):
    (moved, in_ram), (plain, on_device) = optimizer_of(True), optimizer_of(False)
    for step, order in enumerate([[*range(7)], *orders]):
        step_alone(moved, in_ram, order, step)
        step_alone(plain, on_device, order, step)
    assert all(map(torch.equal, moved, plain))
    tensors, data = in_ram.state({param: str(number) for number, param in enumerate(moved)})
    expected, expected_data = on_device.state({param: str(number) for number, param in enumerate(plain)})
    assert data == expected_data
    assert all(torch.equal(tensors[name], value) for name, value in expected.items())
    in_ram._host._ahead.clear()
    assert not cuda.late.num_lost


def test_state_is_copied_while_the_parameter_before_it_is_stepped(cuda, monkeypatch):
    params, optimizer = optimizer_of(True)
    state = optimizer._host
    order = [5, 2, 6, 0, 3, 1, 4]
    for step in range(3):  # the state is created, then the order is learnt, also from one step to the next
        step_alone(params, optimizer, order, step)
    fetched: list[int] = []
    fetch = state._fetch
    monkeypatch.setattr(state, "_fetch", lambda number: fetched.append(number) or fetch(number))
    late = []
    for param in (params[number] for number in order if number != 3):
        part = optimizer._part_of[param]
        late.append(part not in state._ahead)
        param.grad = torch.ones_like(param)
        optimizer.step_alone(3, param)
    state._ahead.clear()
    assert late == [False] * 6
    assert len(fetched) == 6  # each once


def test_what_is_copied_ahead_when_training_ends_has_arrived_before_its_memory_is_freed(cuda, monkeypatch):
    params, optimizer = optimizer_of(True)
    for step in range(3):
        step_alone(params, optimizer, [0, 1, 2], step)
    (ahead,) = optimizer._host._ahead.values()
    copy, memory, was_there = ahead.copy, StorageWeakRef(ahead.slot.untyped_storage()), []
    del ahead
    monkeypatch.setattr(CudaTransfers, "finish", lambda self, one: was_there.append((one, not memory.expired())))
    del optimizer
    gc.collect()
    assert was_there == [(copy, True)]
    assert memory.expired()
