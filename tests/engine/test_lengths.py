"""How long a training of TrainingEngine is, and how many batches its steps have: on one rank and on two."""

from __future__ import annotations

import pytest
from torch import nn
from torch.utils.data import DataLoader

from modules.engine.Accumulation import Accumulation
from modules.engine.TrainingEngine import TrainingEngine
from modules.session.TrainCallbacks import TrainCallbacks
from tests.support import engine_scenarios
from tests.support.engine_data import adamw, points, small_net
from tests.support.RankPool import run_alone


class Lengths(TrainCallbacks):
    """Notes the samples of each step, and how many steps were announced."""

    def __init__(self):
        self.samples, self.announced = [], set()

    def on_step(self, info):
        self.samples.append(info.samples)
        self.announced.add(info.steps_total)


def train(folder, **options):
    engine = TrainingEngine(small_net(), device="cpu", output_dir=folder)
    lengths = Lengths()
    options = {"optimizer": adamw(engine), "criterion": nn.CrossEntropyLoss(), "callbacks": lengths, **options}
    engine.train(DataLoader(points(40), batch_size=10), **options)
    return engine, lengths


@pytest.mark.parametrize(
    ("options", "samples"),
    [
        ({"max_steps": 6}, [10] * 6),
        ({"max_steps": 6, "num_epochs": 1}, [10] * 4),
        ({"max_steps": 3, "num_epochs": 1}, [10] * 3),
        ({"num_epochs": 4, "gradient_accumulation_steps": {0: 4, 2: 3, 3: 1}}, [40, 40, 30, 10, 10, 10, 10, 10]),
        ({"num_epochs": 2, "gradient_accumulation_steps": {1: 2, 7: 5}}, [10, 10, 10, 10, 20, 20]),
    ],
)
def test_a_training_has_the_steps_that_were_announced(options, samples, tmp_path):
    _, lengths = train(tmp_path, **options)
    assert lengths.samples == samples
    assert lengths.announced == {len(samples)}


def test_the_figures_of_an_epoch_that_is_cut_off_are_in_the_history(tmp_path):
    engine, _ = train(tmp_path, max_steps=6, val_loader=DataLoader(points(20), batch_size=10))
    assert [len(values) for values in engine.history.values()] == [2, 2, 2]
    assert not engine.history.stopped
    assert engine.best_checkpoint.name == engine.last_checkpoint.name == "step-000000006"
    again, lengths = train(tmp_path, max_steps=6, val_loader=DataLoader(points(20), batch_size=10), resume=True)
    assert dict(again.history) == dict(engine.history)
    assert not lengths.samples


def check_same(one, two, rel):
    assert one["history"].keys() == two["history"].keys()
    for name, values in one["history"].items():
        assert two["history"][name] == pytest.approx(values, rel=rel)
    assert two["weights"] == pytest.approx(one["weights"], rel=rel, abs=rel)


def test_so_many_steps_in_parts_are_the_training_at_once(tmp_path, two_ranks):
    one = run_alone(engine_scenarios.train_for_some_steps, folder=str(tmp_path))
    two, _ = two_ranks.run(engine_scenarios.train_for_some_steps, folder=str(tmp_path))
    for found in (one, two):
        assert found["rest"] == found["whole"]
        assert found["first"]["weights"] != found["whole"]["weights"]
    check_same(one["whole"], two["whole"], 1e-9)


def test_accumulation_by_schedule_is_the_same_on_two_ranks_and_after_a_resume(tmp_path, two_ranks):
    one = run_alone(engine_scenarios.accumulate_by_schedule, folder=str(tmp_path))
    two, _ = two_ranks.run(engine_scenarios.accumulate_by_schedule, folder=str(tmp_path))
    for found in (one, two):
        assert found["parts"] == found["whole"]
    check_same(one["whole"], two["whole"], 1e-9)


def test_the_steps_of_a_schedule_are_those_of_its_epochs():
    for by_epoch in ({}, {0: 3}, {2: 2, 3: 4}, {0: 5, 9: 1}):
        schedule = Accumulation(by_epoch)
        for epochs in range(6):
            assert schedule.total_steps(7, epochs) == sum(schedule.steps(7, epoch) for epoch in range(epochs))
