"""Which parts of a model are gathered alone; tests/engine/test_sharding.py trains with them."""

from __future__ import annotations

import pytest
from torch import nn

from modules.config.errors import UserError
from modules.engine.shard_blocks import choose_blocks
from modules.engine.Sharding import Sharding
from tests.support.engine_sharding_scenarios import Block, Transformer


def test_blocks_of_a_class_come_with_inner_ones_first_and_without_the_model():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 2))
    assert choose_blocks(model, [nn.Sequential, nn.Linear]) == [model[1], model[0][0], model[0]]


def test_by_size_the_outermost_modules_with_a_tenth_of_the_weights_are_blocks_and_small_ones_are_not():
    layers = nn.ModuleList(nn.Sequential(nn.Linear(50, 50), nn.ReLU()) for _ in range(20))
    model = nn.ModuleDict({"small": nn.Linear(2, 2), "layers": layers, "large": nn.Linear(50, 500)})
    assert set(choose_blocks(model, None)) == {*layers, model["large"]}


def test_modules_that_use_the_weights_of_inner_ones_without_calling_them_stay_whole():
    model = nn.Sequential(nn.MultiheadAttention(8, 2), nn.TransformerEncoderLayer(8, 2, 16))
    assert set(choose_blocks(model, None)) == set(model)


def test_what_shares_a_weight_with_the_rest_of_the_model_stays_with_it():
    model = Transformer()
    assert model.head not in choose_blocks(model, None)
    assert choose_blocks(model, [Block, nn.Embedding]) == list(reversed(model.blocks))


def test_a_class_without_modules_is_refused_with_those_that_have_some():
    with pytest.raises(UserError, match=r"^shard_blocks: the model has no LSTM with weights in it; .* Block, "):
        choose_blocks(Transformer(), [nn.LSTM])


@pytest.mark.parametrize(
    ("sharding", "said"),
    [
        (Sharding("fsdp2"), "strategy 'fsdp2': use 'ddp', 'zero1', 'fsdp' or 'hsdp'."),
        (
            Sharding("fsdp", ["Block"]),
            "shard_blocks: 'Block' is not a class of modules; pass classes, such as [Block].",
        ),
        (Sharding("fsdp", None, 2), "shard_group_size 2: it is for strategy='hsdp'; omit it."),
        (Sharding("hsdp", None, 0), "shard_group_size 0: it must be a whole number of ranks, at least 1."),
    ],
)
def test_arguments_that_can_not_work_are_refused(sharding, said):
    with pytest.raises(UserError) as error:
        sharding.check(Transformer())
    assert str(error.value) == said


def test_models_that_can_not_be_sharded_are_refused():
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(UserError, match=r"trained weights are in float32 and float64"):
        Sharding("fsdp").check(mixed)
    scalar = nn.ParameterDict({"scale": nn.Parameter(mixed[0].bias.detach().sum())})
    with pytest.raises(UserError, match=r"scale has no rows to be divided; give it the shape \(1,\)"):
        Sharding("fsdp").check(scalar)
    Sharding("zero1").check(mixed)
