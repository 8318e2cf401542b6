"""A fused backward pass gives the curve, the weights and the state of the plain step, bit for bit."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from modules.config.EmaConfig import EmaConfig
from modules.config.OptimizerConfig import OptimizerConfig
from modules.config.optimizers import OPTIMIZERS, optimizers_that
from modules.config.ScheduleConfig import ScheduleConfig
from modules.trainer.optimizers import ParamGroup
from modules.trainer.Step import Step
from modules.trainer.TrainingError import TrainingError
from tests.support.make_loop import make_loop
from tests.support.Recorder import Recorder

ALONE = optimizers_that(lambda facts: facts.steps_alone)
CONFIGS = {name: OptimizerConfig(name=name, learning_rate=1e-2, max_grad_norm=0.0) for name in ALONE}


@pytest.fixture
def name(request) -> str:
    """The name of an optimizer; skips the test if its package is missing."""
    if package := OPTIMIZERS[request.param].package:
        pytest.importorskip(package, reason="an optional package")
    return request.param


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def batch(number: int, size: int = 4, dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(size, 6, generator=generator).to(dtype), torch.randn(size, 3, generator=generator).to(dtype)


def squared_error(model, batch):
    inputs, targets = batch
    return (model(inputs) - targets).float().square().mean(1).sum(), len(inputs), {}


def run(fused: bool, config: OptimizerConfig, steps: list[Step], dtype=torch.float32, loss=squared_error, groups=False):
    """(events, loop) after `steps` with a schedule and an EMA. groups: two, of which one stops after two steps."""
    model, recorder = net(dtype), Recorder()
    params = list(model.parameters())
    two = [ParamGroup("first", params[:3], 3e-2, stops_after=2), ParamGroup("rest", params[3:])]
    loop = make_loop(
        model, loss, len(steps), optimizer=config, schedule=ScheduleConfig(name="cosine"), callbacks=recorder,
        groups=two if groups else None, ema=EmaConfig(enabled=True), fused_backward=fused,
    )  # fmt: skip
    loop.fit(steps)
    return recorder, loop


def same_state(one, other) -> bool:
    (tensors, data), (expected, expected_data) = one.state(), other.state()
    files = tensors.keys() == expected.keys() and data == expected_data
    return files and all(
        tensors[file].keys() == expected[file].keys()
        and all(torch.equal(value, expected[file][name]) for name, value in tensors[file].items())
        for file in tensors
    )


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("name", ALONE, indirect=True)
def test_curve_weights_and_state_are_those_of_the_plain_step(name, groups):
    steps = [Step([batch(number)]) for number in range(5)]
    fused, fused_loop = run(True, CONFIGS[name], steps, groups=groups)
    plain, plain_loop = run(False, CONFIGS[name], steps, groups=groups)
    assert [step.grad_norm for step in fused.steps] == [step.grad_norm for step in plain.steps]
    assert fused.losses == plain.losses
    assert same_state(fused_loop, plain_loop)


@pytest.mark.parametrize("name", ["adamw", "adafactor"], indirect=True)
def test_stochastic_rounding_draws_the_same_bits(name):
    config = OptimizerConfig(name=name, learning_rate=1e-2, max_grad_norm=0.0, stochastic_rounding=True)
    steps = [Step([batch(number, dtype=torch.bfloat16)]) for number in range(4)]
    fused, fused_loop = run(True, config, steps, torch.bfloat16)
    plain, plain_loop = run(False, config, steps, torch.bfloat16)
    assert fused.losses == plain.losses
    assert same_state(fused_loop, plain_loop)


def test_a_step_of_two_shapes_is_updated_once_as_in_the_plain_step():
    steps = [Step([batch(number, 3), batch(10 + number, 1)]) for number in range(3)]
    fused, fused_loop = run(True, CONFIGS["adamw"], steps)
    plain, plain_loop = run(False, CONFIGS["adamw"], steps)
    assert fused.losses == plain.losses
    assert same_state(fused_loop, plain_loop)


def test_no_two_gradients_exist_at_once():
    seen = []
    model = net()
    loop = make_loop(model, squared_error, optimizer=CONFIGS["adamw"], fused_backward=True)
    for param in model.parameters():
        param.register_post_accumulate_grad_hook(lambda _: seen.append([p.grad is None for p in model.parameters()]))
    loop.train_step(Step([batch(0)]))
    assert len(seen) == 6
    assert all(all(are_freed) for are_freed in seen)


def test_weights_are_freed_with_the_loop():
    model = net()
    weight = weakref.ref(model[0].weight)
    loop = make_loop(model, squared_error, optimizer=CONFIGS["adamw"], fused_backward=True)
    loop.train_step(Step([batch(0)]))
    del model, loop
    gc.collect()
    assert weight() is None


@pytest.mark.parametrize("name", ["adamw", "adafactor"], indirect=True)
def test_a_step_whose_loss_is_not_finite_is_skipped_as_in_the_plain_step(name):
    bad = batch(1)
    bad[1][0] = float("nan")
    steps = [Step([batch(0)]), Step([bad]), Step([batch(2)])]
    fused, fused_loop = run(True, CONFIGS[name], steps)
    plain, plain_loop = run(False, CONFIGS[name], steps)
    assert fused.losses == plain.losses
    assert fused.losses[1] is None
    assert any("was skipped" in text for text in fused.warnings)
    assert same_state(fused_loop, plain_loop)


def test_a_gradient_that_is_not_finite_ends_the_run_before_anything_is_saved():
    def loss(model, batch):
        value, count, metrics = squared_error(model, batch)
        return value + model[2].weight.sum().sub(model[2].weight.sum()).sqrt(), count, metrics  # 0, with slope infinity

    with pytest.raises(TrainingError, match=r"gradient of step 1 was not finite.*resume from the last backup"):
        run(True, CONFIGS["adamw"], [Step([batch(0)])], loss=loss)


@pytest.mark.parametrize(("settings", "found"), [({"mixed_precision": "fp16"}, "fp16"), ({}, "gradient clipping")])
def test_the_loop_refuses_what_needs_all_gradients(settings, found):
    config = OptimizerConfig(name="adamw", max_grad_norm=0.0 if settings else 1.0)
    with pytest.raises(TrainingError, match=found):
        make_loop(net(), squared_error, optimizer=config, fused_backward=True, **settings)


def test_a_full_fine_tune_with_checkpointing_and_mixed_shapes_trains_and_resumes_as_without(
    make_config, train, tmp_path
):
    common = (
        "method=full", "optimizer.max_grad_norm=0", "model.gradient_checkpointing=true", "model.mixed_precision=bf16",
        "optimizer.name=adafactor",
    )  # fmt: skip
    plain = train(make_config(*common, "max_steps=3", f"workspace_dir={tmp_path / 'plain'}"))
    fused = (*common, "optimizer.fused_backward=true")
    first = train(make_config(*fused, "max_steps=2"))
    rest = train(make_config(*fused, "max_steps=3"), resume=True)
    assert first.callbacks.losses + rest.callbacks.losses == plain.callbacks.losses
    assert same_state(rest.loop, plain.loop)
