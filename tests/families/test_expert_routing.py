"""Tokens reach the experts that they are meant for."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from modules.families.expert_routing import route_tokens

NUM_EXPERTS, CHOSEN, WIDTH = 4, 2, 8


class Searches(TorchDispatchMode):
    """Counts searches for the places of values, for the number of which the host waits each time."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten.nonzero.default
        return function(*args, **(kwargs or {}))


@pytest.fixture
def routed():
    """(experts, tokens, number of each token's experts, their weights); nobody chooses the last expert."""
    torch.manual_seed(0)
    experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_EXPERTS))
    chosen = torch.stack([torch.randperm(NUM_EXPERTS - 1)[:CHOSEN] for _ in range(6)])
    return experts, torch.randn(6, WIDTH, requires_grad=True), chosen, torch.rand(6, CHOSEN)


def test_each_token_gets_the_weighted_sum_of_its_experts_and_all_experts_get_gradients(routed):
    experts, tokens, chosen, weights = routed
    with Searches() as searches:
        result = route_tokens(experts, tokens, chosen.flatten(), weights.reshape(-1, 1))
    expected = torch.stack([
        sum(weight * experts[int(number)](token) for number, weight in zip(numbers, of_token, strict=True))
        for token, numbers, of_token in zip(tokens, chosen, weights, strict=True)
    ])  # fmt: skip
    torch.testing.assert_close(result, expected)
    result.sum().backward()
    assert all(expert.weight.grad is not None for expert in experts)
    assert searches.count == 0  # one for each expert, where their sizes could be read together
