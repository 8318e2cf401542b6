"""The optimizer's state in system memory: where it lies, and that a training is the same with it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from modules.config.errors import UserError
from modules.engine.TrainingEngine import TrainingEngine
from modules.trainer import LoopOptimizer
from modules.trainer.optimizers import SMALLEST_IN_RAM
from tests.support.engine_data import points

WIDTH = 64


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Trains in a folder of that name; returns the curve, the weights, and the optimizers by name."""
    monkeypatch.setattr(LoopOptimizer, "PART_ELEMENTS", WIDTH * WIDTH)  # several parts

    def train(name, in_ram, epochs=2, several=False, **options):
        torch.manual_seed(1)
        first = nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        model = nn.Sequential(first, nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)).double()
        engine = TrainingEngine(
            model, device="cpu", output_dir=tmp_path, experiment_name=name, optimizer_state_in_ram=in_ram
        )
        optimizers = {
            "first": torch.optim.AdamW(
                [{"params": first[0].parameters(), "lr": 0.02}, {"params": first[2].parameters()}]
            ),
            "second": torch.optim.SGD(model[2:].parameters(), lr=0.1, momentum=0.9),
        }
        if not several:
            optimizers = {"": torch.optim.AdamW(model.parameters(), lr=0.01)}

        def step(model, batch):
            for name in optimizers:
                loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
                if several:
                    engine.backward(loss, name)
            return loss

        history = engine.train(
            DataLoader(points(40), batch_size=16),
            optimizer=optimizers if several else optimizers[""],
            step_fn=step,
            scheduler=None if several else torch.optim.lr_scheduler.ExponentialLR(optimizers[""], 0.9),
            num_epochs=epochs,
            clip_grad_norm=0.5,
            **options,
        )
        return history["train_loss"], [param.tolist() for param in model.parameters()], optimizers

    return train


def in_slabs(optimizer):
    """The tensors of its state that are parts of something larger."""
    states = [
        value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)
    ]
    return [value for value in states if value.untyped_storage().nbytes() > value.nbytes]


@pytest.mark.parametrize("several", [False, True])
def test_the_large_tensors_are_in_system_memory_and_the_training_is_the_same(several, train):
    losses, weights, optimizers = train("plain", False, several=several)
    assert not any(map(in_slabs, optimizers.values()))
    moved_losses, moved_weights, optimizers = train("moved", True, several=several)
    for optimizer in optimizers.values():
        large = [
            value
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor) and value.nbytes >= SMALLEST_IN_RAM
        ]
        assert large
        assert {id(value) for value in in_slabs(optimizer)} == {id(value) for value in large}
    assert moved_losses == losses
    assert moved_weights == weights


@pytest.mark.parametrize(("before", "after"), [(True, True), (True, False), (False, True)])
def test_a_training_resumes_exactly_wherever_the_state_is(before, after, train):
    straight = train("straight", False)
    train("parts", before, epochs=1)
    resumed = train("parts", after, resume=True)
    assert resumed[:2] == straight[:2]
    assert bool(in_slabs(resumed[2][""])) == after


def test_an_optimizer_that_may_step_all_weights_together_is_refused(tmp_path):
    class Prodigious(torch.optim.SGD):
        pass

    engine = TrainingEngine(nn.Linear(4, 2), device="cpu", output_dir=tmp_path, optimizer_state_in_ram=True)
    optimizer = Prodigious(engine.model.parameters(), lr=0.1)
    with pytest.raises(UserError, match="optimizer_state_in_ram: Prodigious may have to step all weights together"):
        engine.train(DataLoader(points(4)), optimizer=optimizer, criterion=nn.CrossEntropyLoss(), num_epochs=1)
