"""The check before a start: what the window adds to it, and cancelling it."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from modules.config.errors import UserError
from modules.config.problems import warning
from modules.machine.Machine import read_machine
from modules.session.RunSummary import RunSummary
from modules.ui import RunControl as run_control
from modules.ui.models.measured_speed import speed_key
from modules.ui.windows import RunSummaryWindow as summary_module
from tests.support.backup_files import state_of, write_backup
from tests.support.fake_nvml import GIB, FakeGpu, FakeNvml, put_gpus

STEPS = RunSummary((("Steps", "5"),))


@pytest.fixture
def summaries(monkeypatch):
    """The texts of the summaries shown."""
    shown = []

    def show(app, summary, start):
        shown.append(summary)
        return SimpleNamespace()

    monkeypatch.setattr(summary_module, "RunSummaryWindow", show)
    return shown


def test_the_summary_says_which_gpu_has_too_little_free_memory_at_this_moment(app, wait_for, summaries, monkeypatch):
    gpu = FakeGpu("NVIDIA A100", "GPU-0", memory_bytes=24 * GIB)
    wait_for(app, lambda: app.devices.machine is not None)
    put_gpus(monkeypatch, FakeNvml([gpu]))
    app.devices.take_machine(read_machine())
    monkeypatch.setattr(run_control, "run_check", lambda check: STEPS)
    app.bottom_bar.check.invoke()
    wait_for(app, lambda: summaries)
    assert summaries[0].splitlines()[0] == "Steps:         5"
    assert "Warning" not in summaries[0]
    gpu.used_bytes, gpu.processes = 24 * GIB, {4121: ("/usr/bin/python", 24 * GIB)}
    app.bottom_bar.check.invoke()
    wait_for(app, lambda: len(summaries) == 2)
    assert "GiB and GPU 0 has 0.0 free (python 4121)" in summaries[1]


def test_the_summary_says_the_memory_that_the_run_needs(app, wait_for, summaries, monkeypatch):
    wait_for(app, lambda: app.devices.machine is not None)
    monkeypatch.setattr(run_control, "run_check", lambda check: STEPS)
    app.bottom_bar.check.invoke()
    wait_for(app, lambda: summaries)
    assert summaries[0].splitlines()[1].startswith("Memory:        ")
    assert "by estimate" in summaries[0]
    lines = (("GPU memory", "about 22 GiB on the GPU"), ("System memory", "about 8 GiB"))
    monkeypatch.setattr(run_control, "run_check", lambda check: RunSummary(lines=lines))
    app.bottom_bar.check.invoke()
    wait_for(app, lambda: len(summaries) == 2)
    labels = [line.partition(":")[0] for line in summaries[1].splitlines()]
    assert labels == ["GPU memory", "System memory", "Available"]  # each once


@pytest.mark.parametrize("resumed_batch", ["that of the settings", "another"])
def test_the_time_of_a_resumed_run_is_that_of_the_steps_left_in_batches_of_the_measured_size(
    app, wait_for, summaries, monkeypatch, tmp_path, resumed_batch
):
    wait_for(app, lambda: app.devices.machine is not None and app.devices.num_samples is not None)
    app.settings.set("workspace_dir", str(tmp_path / "run"))
    config = app.settings.config()
    shape = app.devices.shape(config)
    batch = shape.batch if resumed_batch == "that of the settings" else 2 * shape.batch
    state = state_of(shape.steps - 3, run={"global_batch": batch, "samples": "digest"})
    write_backup(tmp_path / "run" / "backup", shape.steps - 3, state)
    app.devices.take_speed(speed_key(config), 2.0)
    monkeypatch.setattr(run_control, "run_check", lambda check: STEPS)
    app.bottom_bar.control.resume()
    wait_for(app, lambda: summaries)
    times = [line for line in summaries[0].splitlines() if line.startswith("Time:")]
    if resumed_batch == "another":
        assert times == []
    else:
        assert times[0].startswith("Time:          about 00:06 for the 3 steps left at 0.50 it/s")


def test_the_summary_names_settings_by_their_labels_and_says_each_warning_once(app, wait_for, summaries, monkeypatch):
    app.settings.set("schedule.warmup", 100)
    app.settings.set("max_steps", 50)
    [problem] = app.problems.all()
    text = "schedule.warmup 100 does not end within max_steps 50: use fewer steps, or a share such as 0.1."
    monkeypatch.setattr(run_control, "run_check", lambda check: replace(STEPS, warnings=(warning(text),)))
    app.bottom_bar.check.invoke()
    wait_for(app, lambda: summaries)
    assert summaries[0].count("Warning") == 1
    assert problem.message in summaries[0]
    assert problem.message.startswith("Warm-up 100 does not end within Max steps 50")


@pytest.mark.parametrize("refused", [False, True])
def test_a_long_check_can_be_cancelled_and_its_result_is_passed_over(app, wait_for, summaries, monkeypatch, refused):
    cancelled, ended, checks = threading.Event(), threading.Event(), []

    def run_check(check):
        checks.append(check)
        if len(checks) == 2:
            return RunSummary((("Check", "the second"),))
        cancelled.wait(120)
        ended.set()
        if refused:
            raise UserError("the first was refused")
        return RunSummary((("Check", "the first"),))

    monkeypatch.setattr(run_control, "CANCEL_MS", 10)
    monkeypatch.setattr(run_control, "check_of", lambda config, resume: SimpleNamespace(cancel=cancelled.set))
    monkeypatch.setattr(run_control, "run_check", run_check)
    bar = app.bottom_bar
    bar.start.invoke()
    assert (bar.start.cget("text"), bar.start.cget("state")) == ("Checking…", "disabled")
    wait_for(app, lambda: bar.start.cget("text") == "Cancel check")
    bar.start.invoke()
    assert bar.start.cget("text") == "Start training"
    assert app.message.cget("text") == "The check was cancelled."
    wait_for(app, ended.is_set)
    bar.check.invoke()
    wait_for(app, lambda: summaries)
    assert [summary.splitlines()[0] for summary in summaries] == ["Check:         the second"]
    assert app.message.cget("text") == "The check was cancelled."
    assert bar.start.cget("text") == "Start training"
