from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from modules.config.OptimizerConfig import OptimizerConfig
from modules.trainer.optimizers import (
    ParamGroup,
    check_same_optimizer,
    create_optimizer,
    load_optimizer_state,
    optimizer_state,
)
from modules.trainer.TrainingError import TrainingError

CONFIGS = {
    "adamw": OptimizerConfig(name="adamw", learning_rate=0.05, weight_decay=0.0),
    "adafactor": OptimizerConfig(name="adafactor", learning_rate=0.5, weight_decay=0.0),
    "prodigy": OptimizerConfig(name="prodigy", learning_rate=1.0, weight_decay=0.0),
}


def least_squares() -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    inputs, true_weight = torch.randn(64, 5), torch.randn(5, 3)
    torch.manual_seed(1)
    return nn.Linear(5, 3), inputs, inputs @ true_weight


def descend(model, optimizer, inputs, targets, steps: int) -> float:
    for _ in range(steps):
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


@pytest.mark.parametrize("name", CONFIGS)
def test_every_optimizer_solves_a_least_squares_problem(name):
    model, inputs, targets = least_squares()
    optimizer = create_optimizer(CONFIGS[name], [ParamGroup("all", list(model.parameters()))])
    before = descend(model, optimizer, inputs, targets, 1)
    assert descend(model, optimizer, inputs, targets, 300) < 0.05 * before


@pytest.mark.parametrize("name", CONFIGS)
def test_the_settings_reach_the_optimizer(name):
    parameters = [nn.Parameter(torch.zeros(2))]
    config = OptimizerConfig(
        name=name, learning_rate=0.5, beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.2,
        adafactor_beta2_decay=-0.7, adafactor_clip_threshold=2.0, prodigy_d_coef=0.5,
    )  # fmt: skip
    group = create_optimizer(config, [ParamGroup("all", parameters)]).param_groups[0]
    expected = {
        "adamw": {"betas": (0.8, 0.95), "eps": 1e-6},
        "adafactor": {"beta2_decay": -0.7, "d": 2.0},
        "prodigy": {"betas": (0.8, 0.95), "eps": 1e-6, "d_coef": 0.5},
    }[name]
    assert {key: group[key] for key in expected} == expected
    assert group["weight_decay"] == 0.2


def test_groups_keep_their_own_rates_and_all_take_the_factor():
    first, second = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    groups = [ParamGroup("first", [first], 0.5), ParamGroup("second", [second])]
    optimizer = create_optimizer(OptimizerConfig(learning_rate=0.1), groups, learning_rate_factor=2.0)
    assert [(g["name"], g["lr"], g["initial_lr"]) for g in optimizer.param_groups] == [
        ("first", 1.0, 1.0),
        ("second", 0.2, 0.2),
    ]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", CONFIGS)
def test_an_optimizer_goes_on_from_its_state_bit_for_bit(name, layout):
    def make():
        torch.manual_seed(3)
        model = nn.Conv2d(3, 4, 3).to(memory_format=layout)
        names = {param: key for key, param in model.named_parameters()}
        return model, names, create_optimizer(CONFIGS[name], [ParamGroup("all", list(model.parameters()))])

    inputs, targets = torch.randn(2, 3, 8, 8), torch.randn(2, 4, 6, 6)
    straight, _, optimizer = make()
    descend(straight, optimizer, inputs, targets, 6)

    first, names, optimizer = make()
    descend(first, optimizer, inputs, targets, 3)
    tensors, numbers = optimizer_state(optimizer, names)
    # as a backup keeps them: contiguous, and plain JSON
    tensors = {key: value.clone(memory_format=torch.contiguous_format) for key, value in tensors.items()}
    numbers = json.loads(json.dumps(numbers, allow_nan=False))

    second, names, optimizer = make()
    second.load_state_dict(first.state_dict())
    load_optimizer_state(optimizer, names, tensors, numbers)
    descend(second, optimizer, inputs, targets, 3)
    assert torch.equal(second.weight, straight.weight)
    assert torch.equal(second.bias, straight.bias)


def test_the_state_of_another_optimizer_is_refused():
    parameter = nn.Parameter(torch.zeros(2))
    adamw, adafactor = (create_optimizer(CONFIGS[name], [ParamGroup("all", [parameter])]) for name in list(CONFIGS)[:2])
    _, numbers = optimizer_state(adafactor, {parameter: "p"})
    with pytest.raises(TrainingError, match=r"Adafactor and optimizer\.name asks for AdamW"):
        check_same_optimizer(adamw, numbers)
