"""Traces of an engine's steps."""

from __future__ import annotations

import json

import pytest
from torch import nn
from torch.utils.data import DataLoader

from modules.config.errors import UserError
from modules.engine.Profiler import Profiler
from modules.engine.TrainingEngine import TrainingEngine
from tests.support.engine_data import adamw, points, small_net


@pytest.fixture
def engine(tmp_path):
    return TrainingEngine(small_net(), device="cpu", output_dir=tmp_path)


def train(engine, **options):
    loader = DataLoader(points(100), batch_size=10)
    engine.train(loader, optimizer=adamw(engine), criterion=nn.CrossEntropyLoss(), num_epochs=1, **options)


def test_the_steps_of_the_schedule_are_traced(engine):
    profiler = Profiler(engine, wait=1, warmup=1, active=2, repeat=2)
    train(engine, callbacks=profiler)
    assert sorted(path.name for path in profiler.folder.iterdir()) == ["step-4.json", "step-8.json"]
    events = json.loads((profiler.folder / "step-4.json").read_text())["traceEvents"]
    steps = {event["name"] for event in events if str(event.get("name", "")).startswith("ProfilerStep")}
    assert steps == {"ProfilerStep#2", "ProfilerStep#3"}
    assert any("addmm" in str(event.get("name")) for event in events)


def test_other_ranks_than_the_first_write_no_trace(engine, monkeypatch):
    monkeypatch.setattr(TrainingEngine, "is_main_process", False)
    profiler = Profiler(engine, wait=0, active=1)
    train(engine, callbacks=profiler)
    assert not profiler.folder.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"active": 0}, "Profiler: active 0: it must be a whole number, at least 1."),
        ({"wait": 1.5}, "Profiler: wait 1.5: it must be a whole number, at least 0."),
    ],
)
def test_a_schedule_that_can_not_be_is_refused(options, message, engine):
    with pytest.raises(UserError, match=message):
        Profiler(engine, **options)
