"""Validation every few steps, and the best checkpoints that are kept: on one rank and on two, killed and resumed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from modules.engine.EarlyStopping import EarlyStopping
from modules.engine.TrainingEngine import TrainingEngine
from modules.session.TrainCallbacks import TrainCallbacks
from tests.support import engine_scenarios
from tests.support.engine_data import adamw, points, small_net
from tests.support.RankPool import run_alone

VALUES = [0.5, 0.4, 0.45, 0.3, 0.6, 0.7, 0.2]  # of the monitored figure


class Validations(TrainCallbacks):
    def __init__(self):
        self.told = []

    def on_figures(self, step, figures):
        self.told.append((step, sorted(figures)))


def train(folder, values=VALUES, resume=False, **options):
    """Eight steps per epoch, whose figure "mae" takes the given values one after the other."""
    engine = TrainingEngine(small_net(), device="cpu", output_dir=folder)
    following = iter(values)
    options = {
        "optimizer": adamw(engine),
        "criterion": nn.CrossEntropyLoss(),
        "val_loader": DataLoader(points(5), batch_size=5),
        "metrics": {"mae": lambda output, target: (torch.tensor(next(following)), 1)},
        "monitor": "mae",
        "num_epochs": 7,
        "resume": resume,
        **options,
    }
    if stops_early := options.pop("patience", None):
        options["callbacks"] = EarlyStopping(engine, stops_early, monitor="mae")
    engine.train(DataLoader(points(40), batch_size=5), **options)
    return engine


def names(paths):
    return [f"{path.parent.name}/{path.name}" for path in paths]


def test_validations_by_step_are_the_same_on_two_ranks_and_after_a_kill(tmp_path, two_ranks):
    one = run_alone(engine_scenarios.validate_every_steps, folder=str(tmp_path))
    two, _ = two_ranks.run(engine_scenarios.validate_every_steps, folder=str(tmp_path))
    for found in (one, two):
        assert found["parts"] == found["whole"]
    first, second = one["whole"], two["whole"]
    assert first["history"]["by step: step"] == [3, 6, 9, 12, 15, 18]
    assert len(set(first["history"]["by step: lr"])) > 1
    assert first["history"].keys() >= {"train_loss", "by step: val_loss", "by step: accuracy"}
    assert "val_loss" not in first["history"]
    assert second["best"] == first["best"]
    assert second["kept"] == first["kept"]
    for name, values in first["history"].items():
        assert second["history"][name] == pytest.approx(values, rel=1e-9)


def test_figures_by_step_are_told_and_choose_the_best_checkpoint(tmp_path):
    validations = Validations()
    engine = train(tmp_path, num_epochs=2, validate_every_steps=3, callbacks=validations)
    names = ["lr", "mae", "train_loss", "val_loss"]
    assert validations.told == [(step, names) for step in (3, 6, 9, 12, 15)]
    assert engine.history.by_step["mae"] == pytest.approx(VALUES[:5])
    assert (engine.history.best_step, engine.history.best_epoch) == (12, None)
    assert engine.best_checkpoint.name == "step-000000012"


def test_a_training_loss_by_step_is_that_since_the_validation_before(tmp_path):
    history = train(tmp_path, num_epochs=1, validate_every_steps=2).history
    assert sum(history.by_step["train_loss"]) / 4 == pytest.approx(history["train_loss"][0])


def test_early_stopping_counts_the_validations_by_step(tmp_path):
    history = train(tmp_path, validate_every_steps=5, patience=2).history
    assert history.stopped
    assert history.by_step["step"] == [5, 10, 15, 20, 25, 30]


def test_the_best_checkpoints_are_kept_and_named_by_epoch_and_value(tmp_path):
    engine = train(tmp_path, save_top_k=3)
    kept = ["epoch-7-mae-0.2/step-000000056", "epoch-4-mae-0.3/step-000000032", "epoch-2-mae-0.4/step-000000016"]
    assert names(engine.top_checkpoints) == kept
    assert {path.name for path in (engine.folder / "checkpoints" / "top").iterdir()} == {
        name.split("/")[0] for name in kept
    }
    assert names([engine.best_checkpoint]) == kept[:1]
    assert not (engine.folder / "checkpoints" / "best").exists()


def test_kept_checkpoints_survive_a_resume_and_one_can_go_back_to_the_best(tmp_path):
    train(tmp_path, num_epochs=4, save_top_k=2)
    engine = train(tmp_path, VALUES[4:], num_epochs=6, save_top_k=2, resume=True)
    assert names(engine.top_checkpoints) == ["epoch-4-mae-0.3/step-000000032", "epoch-2-mae-0.4/step-000000016"]
    again = train(tmp_path, [0.35, 0.1], num_epochs=6, save_top_k=2, resume="best")
    assert again.history["mae"] == pytest.approx([0.5, 0.4, 0.45, 0.3, 0.35, 0.1])
    assert names(again.top_checkpoints) == ["epoch-6-mae-0.1/step-000000048", "epoch-4-mae-0.3/step-000000032"]


def test_the_best_checkpoint_stays_the_best_when_only_later_ones_are_kept_by_value(tmp_path):
    first = train(tmp_path, [0.1], num_epochs=1)
    engine = train(tmp_path, [0.5, 0.4], num_epochs=3, save_top_k=2, resume=True)
    assert engine.best_checkpoint == first.best_checkpoint
    assert names(engine.top_checkpoints)[1:] == ["epoch-3-mae-0.4/step-000000024", "epoch-2-mae-0.5/step-000000016"]
