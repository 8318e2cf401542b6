"""The update interval, the start and the decay of the EMA."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from modules.trainer import stochastic_rounding
from modules.trainer.Ema import Ema, swap_weights


def run(ema: Ema, weight: nn.Parameter, first: int, last: int) -> None:
    for step in range(first, last + 1):
        with torch.no_grad():
            weight.fill_(float(step))
        ema.update(step)


def test_before_the_ema_starts_the_current_weights_are_used():
    weight = nn.Parameter(torch.zeros(3))
    ema = Ema({"weight": weight}, decay=0.9, start_after=4)
    run(ema, weight, 1, 3)
    with ema.applied():
        assert weight[0] == 3.0
    run(ema, weight, 4, 4)
    assert ema.averages["weight"][0] == 4.0
    run(ema, weight, 5, 6)
    expected = 4.0
    for number, value in enumerate((5.0, 6.0), start=1):
        expected += (1 - min(0.9, (1 + number) / (10 + number))) * (value - expected)
    assert ema.averages["weight"][0].item() == pytest.approx(expected)
    with ema.applied():
        assert weight[0].item() == pytest.approx(expected)
    assert weight[0] == 6.0


def test_the_decay_accounts_for_the_update_interval():
    rare_weight, weight = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    rare, exact = Ema({"w": rare_weight}, decay=0.99, update_every=5), Ema({"w": weight}, decay=0.99)
    # constant values, so that only the decay matters; after its warm-up
    for ema, param in ((rare, rare_weight), (exact, weight)):
        with torch.no_grad():
            param.fill_(1.0)
        for step in range(10_001, 10_101):
            ema.update(step)
    assert rare.averages["w"].item() == pytest.approx(exact.averages["w"].item(), rel=1e-5)
    assert exact.averages["w"].item() == pytest.approx(1 - 0.99**100, rel=1e-5)


def test_swapped_weights_take_effect_inside_autocast():
    layer, ones = nn.Linear(4, 1), torch.ones(1, 4)
    other = layer.weight.detach() + 1.0
    with torch.autocast("cpu", torch.bfloat16):
        before = layer(ones)
        with swap_weights({layer.weight: other}):
            replaced = layer(ones)
        after = layer(ones)
    assert replaced.item() == pytest.approx(before.item() + 4.0, abs=0.1)
    assert after.item() == before.item()


def test_half_precision_weights_are_converted_one_chunk_at_a_time(monkeypatch):
    def recorded(averages, current, *arguments, lerp=torch._foreach_lerp_):
        sizes.append(sum(tensor.numel() for tensor in current))
        lerp(averages, current, *arguments)

    sizes = []
    monkeypatch.setattr(stochastic_rounding, "CHUNK_ELEMENTS", 10)
    monkeypatch.setattr(torch, "_foreach_lerp_", recorded)
    halves = {f"half {size}": nn.Parameter(torch.zeros(size, dtype=torch.bfloat16)) for size in (6, 4, 5, 30)}
    params = {**halves, "whole": nn.Parameter(torch.zeros(20))}
    ema = Ema(params, decay=0.5)
    with torch.no_grad():
        for param in params.values():
            param.copy_(torch.arange(param.numel()))
    ema.update(10_000)
    assert sizes == [20, 10, 5, 30]  # float32 weights are not copied
    for name, param in params.items():
        assert torch.equal(ema.averages[name], param.detach().float() / 2)


def test_between_updates_the_average_does_not_change():
    weight = nn.Parameter(torch.zeros(1))
    ema = Ema({"w": weight}, decay=0.9, update_every=3)
    seen = []
    for step in range(1, 8):
        run(ema, weight, step, step)
        seen.append(ema.averages["w"].item())
    assert seen[0] == seen[1] == 0.0
    assert seen[2] == seen[3] == seen[4] != 0.0
    assert seen[5] == seen[6] != seen[4]


@pytest.mark.parametrize("interruption", [2, 5, 6])
def test_the_ema_continues_after_a_resume(interruption):
    settings = {"decay": 0.9, "update_every": 2, "start_after": 3}
    weight = nn.Parameter(torch.zeros(2))
    straight = Ema({"w": weight}, **settings)
    run(straight, weight, 1, 9)
    first = Ema({"w": weight}, **settings)
    run(first, weight, 1, interruption)
    second = Ema({"w": weight}, **settings)
    second.load({name: value.clone() for name, value in first.averages.items()}, interruption)
    with second.applied(), torch.no_grad():
        shown = weight.clone()
    with first.applied(), torch.no_grad():
        assert torch.equal(shown, weight)
    run(second, weight, interruption + 1, 9)
    assert torch.equal(second.averages["w"], straight.averages["w"])
