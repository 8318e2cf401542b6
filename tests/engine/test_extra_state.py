"""The state of a program's own objects in checkpoints: on one rank and on two, killed and resumed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from modules.config.errors import UserError
from modules.engine.ExtraState import ExtraState
from modules.engine.TrainingEngine import TrainingEngine
from tests.support import engine_scenarios
from tests.support.engine_data import adamw, points, small_net
from tests.support.RankPool import run_alone


class Holding:
    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


class OtherRank:
    """A rank beside one that has another state."""

    world_size, is_main = 2, True

    def gather(self, value, why):
        return [value, "another"]


def train(folder, num_epochs=1, **options):
    engine = TrainingEngine(small_net(), device="cpu", output_dir=folder)
    loader = DataLoader(points(20), batch_size=10)
    engine.train(loader, optimizer=adamw(engine), criterion=nn.CrossEntropyLoss(), num_epochs=num_epochs, **options)
    return engine


def test_a_killed_training_goes_on_with_the_state_of_its_objects(tmp_path, two_ranks):
    one = run_alone(engine_scenarios.keep_extra_state, folder=str(tmp_path))
    two, _ = two_ranks.run(engine_scenarios.keep_extra_state, folder=str(tmp_path))
    for found in (one, two):
        assert found["parts"] == found["whole"]
    assert "'calls': 15" in one["whole"]["counts"]
    assert two["whole"]["values"] == pytest.approx(one["whole"]["values"], rel=1e-9)


@pytest.mark.parametrize(
    ("saved", "given", "message"),
    [
        ({}, {"buffer": Holding(1)}, "the checkpoint has none, but the argument has 'buffer'; pass the objects of"),
        ({"buffer": Holding(1)}, {}, "the checkpoint has 'buffer', but the argument has none; pass the objects of"),
        ({"a": Holding(1), "b": Holding(2)}, {"b": Holding(2)}, "has 'a', 'b', but the argument has 'b'; pass"),
    ],
)
def test_a_resume_with_other_objects_is_refused(saved, given, message, tmp_path):
    train(tmp_path, extra_state=saved)
    with pytest.raises(UserError, match=message):
        train(tmp_path, 2, extra_state=given, resume=True)


def test_what_can_not_be_saved_is_named(tmp_path):
    with pytest.raises(UserError, match=r"extra_state buffer\.lock: object can't be saved; a state may have tensors,"):
        train(tmp_path, extra_state={"buffer": Holding({"lock": object()})})


def test_states_that_differ_between_ranks_are_told_once():
    told = []
    extra = ExtraState({"buffer": Holding(torch.ones(2))}, OtherRank(), told.append)
    for _ in range(2):
        extra.packed()
    assert told == [
        "extra_state: 'buffer' differ between the ranks; checkpoints have rank 0's state, which a resume gives to all."
    ]
