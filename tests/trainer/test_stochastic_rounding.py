from __future__ import annotations

import pytest
import torch
from torch import nn

from modules.config.OptimizerConfig import OptimizerConfig
from modules.trainer import stochastic_rounding
from modules.trainer.optimizers import ParamGroup, create_optimizer
from modules.trainer.stochastic_rounding import split_into_chunks, step_with_stochastic_rounding, stochastic_round

ROUNDED = ("adamw", "schedule_free", "lion", "adafactor", "came", "ademamix", "sgd")


def test_the_mean_of_many_roundings_is_the_value():
    # 3/10 of the way between two adjacent bfloat16 values 2^-7 apart; the same for negative values
    values = torch.full((200_000,), 1 + 0.3 * 2**-7)
    for signed in (values, -values):
        rounded = stochastic_round(signed, seed=1).double()
        assert set(rounded.abs().unique().tolist()) == {1.0, 1 + 2**-7}
        # five standard deviations of a mean of 200,000 draws with p = 0.3
        assert rounded.mean().item() == pytest.approx(signed[0].item(), abs=5 * 2**-7 * (0.21 / 200_000) ** 0.5)


def test_neighbours_are_rounded_independently():
    rounded = stochastic_round(torch.full((100_000,), 1 + 2**-8), seed=2).double() > 1
    together = (rounded[1:] & rounded[:-1]).double().mean().item()
    assert together == pytest.approx(0.25, abs=0.01)


def test_exact_bfloat16_values_are_not_changed():
    values = torch.tensor([0.0, -0.0, 1.0, -1.5, 2.0**-130, 3e38, float("inf"), -float("inf")]).bfloat16()
    for seed in range(20):
        assert torch.equal(stochastic_round(values.float(), seed), values)
    assert stochastic_round(torch.tensor([float("nan")]), 0).isnan().all()


def test_the_same_seed_rounds_the_same_way_in_every_memory_layout():
    values = torch.randn(4, 3, 8, 8)
    other = values.to(memory_format=torch.channels_last)
    assert torch.equal(stochastic_round(values, 5), stochastic_round(other, 5))
    assert not torch.equal(stochastic_round(values, 5), stochastic_round(values, 6))


def test_chunks_have_one_dtype_and_a_bounded_size(monkeypatch):
    monkeypatch.setattr(stochastic_rounding, "CHUNK_ELEMENTS", 10)
    sizes = [(4, torch.bfloat16), (6, torch.bfloat16), (1, torch.bfloat16), (3, torch.float32), (30, torch.float32)]
    params = [nn.Parameter(torch.zeros(size, dtype=dtype)) for size, dtype in sizes]
    parts = split_into_chunks(params)
    assert [[param.numel() for param in part] for part in parts] == [[4, 6], [1], [3], [30]]


def slow_descent(name: str, dtype: torch.dtype, rounding: bool, steps: int = 300) -> nn.Parameter:
    """Weights of 1 with a target of 2, at a learning rate so small that bfloat16 loses every single update."""
    param = nn.Parameter(torch.ones(64, 64, dtype=dtype))
    config = OptimizerConfig(
        name=name, learning_rate=5e-4, weight_decay=0.0, beta2=0.99, sgd_momentum=0.0, stochastic_rounding=rounding
    )
    optimizer = create_optimizer(config, [ParamGroup("all", [param])])
    for step in range(steps):
        (0.5 * (param.float() - 2).square().sum()).backward()
        if rounding:
            step_with_stochastic_rounding(optimizer, 1, step)
        else:
            optimizer.step()
        optimizer.zero_grad()
    return param


@pytest.mark.parametrize("name", ["adamw", "lion", "sgd", "adafactor"])
def test_small_updates_accumulate_as_in_float32(name):
    exact = slow_descent(name, torch.float32, rounding=False).mean().item()
    assert 1.05 < exact < 1.3
    assert slow_descent(name, torch.bfloat16, rounding=False).float().mean().item() == 1.0  # all updates are lost
    rounded = slow_descent(name, torch.bfloat16, rounding=True)
    assert rounded.dtype == torch.bfloat16
    assert rounded.float().mean().item() == pytest.approx(exact, rel=0.005)


@pytest.mark.parametrize("name", ROUNDED)
def test_the_state_is_float32_and_the_weights_stay_in_place(name):
    param = nn.Parameter(torch.ones(8, 8, dtype=torch.bfloat16))
    place = param.data_ptr()
    config = OptimizerConfig(name=name, stochastic_rounding=True)
    optimizer = create_optimizer(config, [ParamGroup("all", [param])])
    for step in range(2):
        param.grad = torch.ones_like(param)
        step_with_stochastic_rounding(optimizer, 1, step)
    assert (param.dtype, param.data_ptr(), param.grad) == (torch.bfloat16, place, None)
    tensors = [value for value in optimizer.state[param].values() if isinstance(value, torch.Tensor)]
    assert tensors
    assert all(tensor.dtype == torch.float32 for tensor in tensors)


def test_stepping_in_chunks_equals_stepping_at_once(monkeypatch):
    def train(part_elements: int) -> list[torch.Tensor]:
        monkeypatch.setattr(stochastic_rounding, "CHUNK_ELEMENTS", part_elements)
        torch.manual_seed(1)
        params = [nn.Parameter(torch.randn(4, 4)) for _ in range(3)]  # float32: nothing is rounded
        config = OptimizerConfig(name="schedule_free", learning_rate=0.1, stochastic_rounding=True)
        # rounding applies to float32 weights, too, so that the results can be compared
        monkeypatch.setattr("modules.trainer.optimizers.uses_stochastic_rounding", lambda config, groups: True)
        optimizer = create_optimizer(config, [ParamGroup("all", params)])
        for step in range(4):
            sum(param.square().sum() for param in params).backward()
            step_with_stochastic_rounding(optimizer, 1, step)
            optimizer.zero_grad()
        assert len(optimizer.param_groups) == (3 if part_elements == 16 else 1)
        return [param.detach() for param in params]

    for cut, whole in zip(train(16), train(1000), strict=True):
        assert torch.equal(cut, whole)
