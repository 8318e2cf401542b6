"""How a model is divided for sharding; tests/trainer/test_sharded_ranks.py trains with it."""

from __future__ import annotations

from torch import nn

from modules.distributed import ShardedRuntime
from modules.distributed.ShardedRuntime import blocks


def block(width: int) -> nn.Module:
    return nn.Sequential(nn.ModuleList([nn.Linear(width, width), nn.Dropout(), nn.Linear(width, width)]))


def test_the_elements_of_the_outermost_lists_are_gathered_one_at_a_time():
    model = nn.ModuleDict({"embed": nn.Linear(8, 8), "layers": nn.ModuleList(block(8) for _ in range(12))})
    assert list(blocks(model)) == list(model["layers"])


def test_an_element_with_much_of_the_model_is_divided_in_turn_unless_it_is_small(monkeypatch):
    large = block(32)
    model = nn.Sequential(nn.ModuleList([block(8), large, nn.Dropout()]))
    assert list(blocks(model)) == [model[0][0], large]
    monkeypatch.setattr(ShardedRuntime, "MIN_DIVIDED", 1000)
    assert list(blocks(model)) == [model[0][0], large[0][0], large[0][2], large]
