"""How long the next run takes, from the speed of an earlier one with the same settings."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from modules.config.files import config_from_values, save_config
from modules.config.TrainConfig import TrainConfig
from modules.machine.Machine import Machine
from modules.session.events import EventWriter
from modules.session.RunFolder import RunFolder
from modules.session.StepInfo import StepInfo
from modules.ui.cards.ShapeCard import LABELS
from modules.ui.models.DeviceModel import DeviceModel
from modules.ui.models.measured_speed import measured_step_seconds, speed_key
from modules.ui.models.typed_text import WRONG_SETTING


def config_in(folder: Path, **values) -> TrainConfig:
    return config_from_values({"workspace_dir": str(folder / "next"), "batch_size": 2, **values})


def write_run(folder: Path, config: TrainConfig, seconds: float, steps: int = 20, device: str = "cpu") -> None:
    run = RunFolder(folder)
    run.create()
    save_config(replace(config, workspace_dir=str(folder)), run.config_path)
    with EventWriter(run.event_path(0), 0) as events:
        for step in range(1, steps + 1):
            took = 100.0 if step <= 3 else seconds  # the first steps compile
            events.write(StepInfo(1, step, steps, 0.1, 0.1, 1e-4, 2, took, None, device=device))


def test_the_newest_run_with_the_same_settings_counts_without_its_first_steps(tmp_path):
    config = config_in(tmp_path)
    write_run(tmp_path / "old", config, 4.0)
    write_run(tmp_path / "new", replace(config, epochs=9, seed=7), 0.5)
    write_run(tmp_path / "other", replace(config, batch_size=8), 9.0)
    write_run(tmp_path / "short", config, 9.0, steps=6)
    for age, name in enumerate(("short", "other", "new", "old")):
        os.utime(tmp_path / name / "config.yaml", (10_000 - age, 10_000 - age))
    assert measured_step_seconds(config, 1, on_gpus=False) == 0.5


@pytest.mark.parametrize(("num_ranks", "on_gpus"), [(2, False), (1, True)])
def test_a_run_on_other_devices_does_not_count(tmp_path, num_ranks, on_gpus):
    write_run(tmp_path / "run", config_in(tmp_path), 0.5)
    assert measured_step_seconds(config_in(tmp_path), num_ranks, on_gpus) is None


def test_without_a_run_nothing_is_made_up(tmp_path):
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.yaml").write_text(": : :", encoding="utf-8")
    assert measured_step_seconds(config_in(tmp_path), 1, False) is None
    assert measured_step_seconds(config_in(tmp_path / "gone"), 1, False) is None


def test_the_time_of_a_run_is_said_only_for_the_settings_that_were_measured(tmp_path):
    devices, config = DeviceModel(), config_in(tmp_path, epochs=10)
    devices.take_machine(Machine(cores=2))
    devices.take_pictures(100)
    assert devices.time_text(config) == ""
    devices.take_speed(speed_key(config), 0.5)
    steps = devices.shape(config).steps
    assert f"for {steps:,} steps at 2.00 it/s" in devices.time_text(config)
    assert devices.time_text(replace(config, epochs=20)) != ""
    assert devices.time_text(replace(config, batch_size=1)) == ""


def test_the_training_tab_says_steps_memory_and_a_measured_time(app, settle, wait_for):
    wait_for(app, lambda: app.devices.num_samples is not None)
    tab = app.open_tab("training")
    settle(app)
    lines = tab.estimate.lines
    assert f"{app.devices.num_samples:,} samples" in lines["Steps"][1].cget("text")
    assert "by estimate" in lines["Memory"][1].cget("text")
    assert not lines["Time"][1].winfo_manager()
    app.devices.take_speed(speed_key(app.settings.in_effect), 2.0)
    assert "at 0.50 it/s" in lines["Time"][1].cget("text")
    assert lines["Time"][1].winfo_manager()
    app.settings.set("batch_size", 1)
    assert not lines["Time"][1].winfo_manager()


def test_the_model_tab_says_what_precision_and_offloading_come_to(app, settle):
    tab = app.open_tab("model")
    settle(app)
    app.settings.load_preset("sdxl-lora")
    settle(app)
    app.devices.take_base(None)  # of the Hub's model, as is found out in the background
    assert list(tab.estimate.lines) == ["Memory"]
    (_, text), before = tab.estimate.lines["Memory"], app.devices.memory_text(app.settings.in_effect)
    assert text.cget("text") == before
    app.settings.set("model.gradient_checkpointing", False)
    assert text.cget("text") == app.devices.memory_text(app.settings.in_effect) != before
    assert tab.estimate.fit.text.winfo_ismapped()


def test_while_a_setting_is_invalid_no_tab_says_the_figures_of_its_last_valid_value(app, settle, wait_for):
    wait_for(app, lambda: app.devices.num_samples is not None)
    app.devices.take_speed(speed_key(app.settings.in_effect), 2.0)
    tab = app.open_tab("training")
    settle(app)
    estimate = tab.estimate
    valid = {name: text.cget("text") for name, (_, text) in estimate.lines.items()}
    assert estimate.fit.text.cget("text") == "Fits 12 GB"
    app.settings.set("epochs", "abc")
    assert estimate.lines["Steps"][1].cget("text") == f"- ({WRONG_SETTING[:-1].lower()})"
    assert estimate.lines["Memory"][1].cget("text") == "-"
    assert not estimate.lines["Time"][1].winfo_manager()
    assert estimate.fit.text.cget("text") == ""
    assert not estimate.fit.menu.winfo_manager()
    devices_tab = app.open_tab("multi-GPU")
    settle(app)
    shape_card = devices_tab.shape_card
    assert {shape_card.text(label) for label in LABELS} == {"-"}
    app.settings.undo()
    assert shape_card.text("Memory") == valid["Memory"]
    app.open_tab("training")
    assert {name: text.cget("text") for name, (_, text) in estimate.lines.items()} == valid
