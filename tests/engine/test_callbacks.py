"""What a program hears of its training, and how it ends one: callbacks, stops, Ctrl-C."""

from __future__ import annotations

import csv
import os
import signal

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from modules.engine import callbacks as module
from modules.engine.callbacks import listeners
from modules.engine.EarlyStopping import EarlyStopping
from modules.engine.TrainingEngine import TrainingEngine
from modules.loggers.CsvLogger import CsvLogger
from modules.loggers.Logger import Logger
from modules.session.TrainCallbacks import TrainCallbacks
from tests.support.engine_data import adamw, points, small_net


class Heard(TrainCallbacks):
    """Notes what it hears, but no steps."""

    def __init__(self):
        self.told = []

    def on_started(self, started):
        self.told.append("started")

    def on_epoch(self, epoch, figures):
        self.told.append(("epoch", epoch, sorted(figures)))

    def on_failed(self, text):
        self.told.append(("failed", text))

    def on_finished(self, step):
        self.told.append(("finished", step))


class Backups(TrainCallbacks):
    def __init__(self):
        self.steps = []

    def on_backup(self, path, step):
        self.steps.append(step)


class OnStep(TrainCallbacks):
    """Calls a function after the step of this number."""

    def __init__(self, step, function):
        self.step, self.function = step, function

    def on_step(self, info):
        if info.step == self.step:
            self.function()


@pytest.fixture
def engine(tmp_path):
    return TrainingEngine(small_net(), device="cpu", output_dir=tmp_path)


def train(engine, num_epochs=2, **options):
    options = {"criterion": nn.CrossEntropyLoss(), **options}
    return engine.train(DataLoader(points(), batch_size=16), optimizer=adamw(engine), num_epochs=num_epochs, **options)


def test_several_callbacks_hear_start_epochs_checkpoints_and_end(engine):
    heard, backups = Heard(), Backups()
    train(engine, callbacks=[heard, backups])
    epochs = [("epoch", number, ["lr", "train_loss"]) for number in (1, 2)]
    assert heard.told == ["started", *epochs, ("finished", 14)]
    assert set(backups.steps) == {7, 14}


def test_callbacks_hear_why_a_training_fails(engine):
    def step_fn(model, batch):
        raise RuntimeError("the data are gone")

    heard = Heard()
    with pytest.raises(RuntimeError):
        train(engine, criterion=None, step_fn=step_fn, callbacks=heard)
    assert heard.told == ["started", ("failed", "the data are gone")]


class TakesWarnings(TrainCallbacks):
    def __init__(self):
        self.warnings = []

    def on_warning(self, text):
        self.warnings.append(text)


@pytest.mark.parametrize(("listener", "is_printed"), [(Heard, True), (TakesWarnings, False)])
def test_warnings_are_printed_unless_a_callback_takes_them(listener, is_printed, engine, capsys):
    broken = iter([float("nan"), *[1.0] * 100])

    def step_fn(model, batch):
        return model(batch[0]).mean() * next(broken)

    train(engine, num_epochs=1, criterion=None, step_fn=step_fn, callbacks=listener())
    assert ("Warning: Step 1 was skipped" in capsys.readouterr().out) == is_printed


def test_a_program_can_stop_its_training_and_go_on_later(engine, tmp_path):
    history = train(engine, callbacks=OnStep(3, engine.stop))
    assert history.stopped
    assert engine.last_checkpoint
    whole = TrainingEngine(small_net(), device="cpu", output_dir=tmp_path / "whole")
    expected = train(whole)
    resumed = train(engine, resume=True)
    assert not resumed.stopped
    assert dict(resumed) == dict(expected)


class OnValidation(TrainCallbacks):
    """Calls a function after the first epoch, and after the validation of a step."""

    def __init__(self, function):
        self.function = function

    def on_epoch(self, epoch, figures):
        self.function()

    def on_figures(self, step, figures):
        self.function()


@pytest.mark.parametrize(("every", "last"), [(None, 7), (3, 3), (7, 7)])
def test_a_stop_by_what_a_validation_found_trains_no_further_step(every, last, engine):
    history = train(
        engine, validate_every_steps=every, val_loader=DataLoader(points(5)), callbacks=OnValidation(engine.stop)
    )
    assert history.stopped
    assert engine.last_checkpoint.name == f"step-{last:09d}"


@pytest.mark.parametrize("epochs_before", [0, 3])
def test_early_stopping_stops_where_it_would_have_without_a_resume(epochs_before, tmp_path):
    values = iter([0.5, 0.4, 0.45, 0.399, 0.6, 0.7, 0.8])
    metrics = {"mae": lambda output, target: (torch.tensor(next(values)), 1)}
    for total in (epochs_before, 7):
        engine = TrainingEngine(small_net(), device="cpu", output_dir=tmp_path)
        early = EarlyStopping(engine, patience=3, monitor="mae", min_delta=0.01)
        loader = DataLoader(points(), batch_size=103)
        if total:
            history = train(
                engine, total, val_loader=loader, metrics=metrics, monitor="mae", callbacks=early, resume=True
            )
    assert history["mae"] == pytest.approx([0.5, 0.4, 0.45, 0.399, 0.6])
    assert history.best_epoch == 4
    assert history.stopped


@pytest.mark.skipif(os.name != "posix", reason="Windows sends Ctrl-C to all processes of the console")
def test_ctrl_c_is_raised_after_the_step_and_its_checkpoint(engine, capsys):
    with pytest.raises(KeyboardInterrupt):
        train(engine, num_epochs=1000, callbacks=OnStep(3, lambda: os.kill(os.getpid(), signal.SIGINT)))
    assert int(engine.last_checkpoint.name.removeprefix("step-")) < 100
    assert "Stopping within two steps" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_long_epoch_prints_where_it_is(engine, monkeypatch, capsys):
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.0)
    train(engine, num_epochs=1)
    assert "  step 2 of 7: loss 0." in capsys.readouterr().out


def test_curves_over_steps_and_epochs_are_logged(engine, monkeypatch):
    monkeypatch.setattr(module, "STEPS_BETWEEN_POINTS", 2)
    train(engine)
    assert logged(engine.folder / "tensorboard" / "steps")["loss"] == [2, 4, 6, 8, 10, 12, 14]
    assert logged(engine.folder / "tensorboard")["train_loss"] == [1, 2]


def test_a_table_has_each_step_once_also_after_going_back_to_a_checkpoint(engine, tmp_path):
    table = tmp_path / "experiment" / "metrics.csv"
    train(engine, num_epochs=1, callbacks=CsvLogger())
    before = table.read_text(encoding="utf-8")
    train(engine, num_epochs=2, resume=True, callbacks=[CsvLogger(), OnStep(10, engine.stop)])
    train(engine, num_epochs=2, resume="best", callbacks=CsvLogger())  # goes back to the end of epoch 1
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(1, 15))
    assert [bool(row["epoch/train_loss"]) for row in rows] == [step in (7, 14) for step in range(1, 15)]
    assert before.splitlines()[1] == table.read_text(encoding="utf-8").splitlines()[1]


def test_only_rank_0_logs(tmp_path):
    loggers = [each for each in listeners(CsvLogger(), is_main=False).listeners if isinstance(each, Logger)]
    assert loggers == []


def test_a_logger_hears_how_the_training_ended_before_it_closes(engine):
    ends = []

    class Recorder(Logger):
        title = "Recorder"

        def log_figures(self, figures, step):
            pass

        def on_finished(self, step):
            ends.append("finished")

        def close(self, seconds=0.0):
            ends.append("closed")

    train(engine, num_epochs=1, callbacks=Recorder())
    assert ends == ["finished", "closed"]


def test_a_criterion_with_buffers_is_moved_to_the_device():
    from modules.engine.arguments import check_criterion

    criterion = check_criterion(nn.CrossEntropyLoss(weight=torch.ones(2)), torch.device("meta"))
    assert criterion.weight.is_meta


def logged(folder):
    """Name of each curve -> its steps."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    points = {}
    for path in folder.glob("events.*"):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                points.setdefault(value.tag, []).append(event.step)
    return points
