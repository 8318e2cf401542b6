"""The main window: tabs, bars, keys, the saved state, and starting a run."""

import importlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import tkinter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import customtkinter as ctk
import pytest

from modules.config.describe import settings_by_path
from modules.config.errors import UserError
from modules.config.files import config_from_values, load_config, save_config
from modules.config.installation import ROOT
from modules.launch.command_text import Places
from modules.machine.Machine import read_machine
from modules.session.following import run_info
from modules.session.free_folders import next_free_folder
from modules.session.RunFolder import RunFolder
from modules.session.RunLock import RunLock
from modules.session.RunSummary import RunSummary
from modules.ui import RunControl as run_control
from modules.ui.cards.ResumeCard import ResumeCard, look
from modules.ui.models.find_settings import find_settings
from modules.ui.models.help_pages import help_page
from modules.ui.models.Preferences import Preferences
from modules.ui.models.run_text import describe_progress, describe_seconds
from modules.ui.models.RunState import RunState
from modules.ui.models.WorkerThreads import WorkerThreads
from modules.ui.OpeningWindow import MIN_SIZE, TABS
from modules.ui.RunControl import check_of, run_check
from modules.ui.tabs.GeneralTab import LookCard
from modules.ui.theme import Theme
from modules.ui.TrainUI import tab_of
from modules.ui.widgets import dialogs
from modules.ui.widgets.form import find_field
from modules.ui.windows.ChangesWindow import ChangesWindow
from modules.ui.windows.CrashReportWindow import CrashReportWindow
from modules.ui.windows.ProblemsWindow import ProblemsWindow
from modules.ui.windows.RunSummaryWindow import RunSummaryWindow
from tests.support.backup_files import write_backup
from tests.support.fake_nvml import FakeGpu, FakeNvml, put_gpus
from tests.support.waiting import PATIENCE_SECONDS

FORM_TABS = ("general", "model", "dataset", "training")

FINE = RunSummary((("Check", "fine"),))


@pytest.fixture
def app(shared_app):
    return shared_app


def press(app, keys: str) -> None:
    app.focus_force()
    app.update()
    app.event_generate(keys)
    app.update()


def test_every_tab_opens(app):
    for name in TABS:
        tab = app.open_tab(name)
        app.update()
        assert tab.winfo_ismapped()
        assert [other for other, one in app.tabs.items() if one.winfo_ismapped()] == [name]
        assert app.tab_bar.selected == name


def test_a_tab_is_made_when_it_is_first_opened(make_app):
    app = make_app()
    assert list(app.tabs) == ["home"]
    first = app.open_tab("dataset")
    app.open_tab("home")
    assert app.open_tab("dataset") is first


def test_what_changes_while_a_tab_is_being_built_finds_it_so(make_app, settle):
    app = make_app()
    for name in TABS:
        app.open_tab(name)
        for _ in range(12):  # a few slices each time
            app.settings.set("epochs", app.settings.get("epochs") + 1)
            app.launch.set_places(Places(f"{app.settings.get('epochs')}.yaml"), follows_run_folder=False)
            app.devices.take_pictures(app.settings.get("epochs"))
            app.devices.take_machine(read_machine())
            app.run.state = replace(app.run.state, is_running=not app.run.state.is_running)
            app.run._show(app.run.state)
            app.update()
        settle(app)
        assert app.tabs[name].winfo_ismapped()


def test_every_setting_is_on_its_tab(app):
    app.settings.set("method", "embedding")
    app.settings.add("embeddings", {"placeholder": "new-word"})
    app.open_tab("dataset").show_setting("concepts.0.name")  # selects the concept, whose fields are then there
    missing = []
    for path, info in settings_by_path().items():
        if tab_of(path) in FORM_TABS and info.type != "list" and path != "config_version":
            path = path.replace("[]", ".0")
            if find_field(app.open_tab(tab_of(path)), path) is None:
                missing.append(path)
    assert missing == []


def test_the_search_opens_the_tab_and_flashes_the_field(app, wait_for):
    app.flash("optimizer.beta1")
    field = find_field(app.tabs["training"], "optimizer.beta1")
    assert app.tab_bar.selected == "training"
    assert not app.preferences.show_all
    assert field.label.cget("fg_color") == Theme.selected
    app.update()
    assert field.editor.winfo_ismapped()
    wait_for(app, lambda: field.label.cget("fg_color") == "transparent")


def test_what_was_searched_for_stays_in_sight_while_the_rest_of_its_tab_is_built(make_app, settle):
    app = make_app(tab="tools")
    dialogs.set_size(app, "{}x{}".format(*MIN_SIZE), MIN_SIZE)
    app.set_show_all(True)
    settle(app)
    for path in ("loss.mae", "master_addr", "output.dtype"):
        app.flash(path)
        settle(app)
        assert is_in_sight(app, path), path


@pytest.mark.parametrize("are_known", [True, False])
def test_a_searched_field_stays_in_sight_while_a_long_table_of_gpus_is_made(
    make_app, wait_for, settle, monkeypatch, are_known
):
    app = make_app(tab="tools")
    dialogs.set_size(app, "{}x{}".format(*MIN_SIZE), MIN_SIZE)
    wait_for(app, lambda: app.devices.machine is not None)
    gpus = [FakeGpu("NVIDIA A100", f"GPU-{number:08d}") for number in range(64)]
    put_gpus(monkeypatch, FakeNvml(gpus))
    machine = read_machine()
    if are_known:
        app.devices.take_machine(machine)
    asked = []
    monkeypatch.setattr("modules.ui.tabs.MultiGpuTab.read_machine", lambda: asked.append(1) or machine)
    app.flash("distributed_backend")
    tab = app.tabs["multi-GPU"]
    wait_for(app, lambda: asked and len(tab.device_table.boxes) == 64)
    settle(app)
    assert is_in_sight(app, "distributed_backend")


def is_in_sight(app, path: str) -> bool:
    label = find_field(app.tabs[tab_of(path)], path).label
    top = label.winfo_rooty() - app.content.winfo_rooty()
    return 0 <= top <= app.content.winfo_height() - label.winfo_height()


def test_a_tab_in_front_is_built_before_one_behind_it(make_app, settle):
    app = make_app(tab="tools")
    settle(app)
    behind, front = app.open_tab("training"), app.open_tab("dataset")
    while not is_built(front):
        app._run_slice()
    assert not is_built(behind)


def is_built(tab) -> bool:
    forms = [card.form for card in tab.page.cards.values() if hasattr(card, "form")]
    return bool(forms) and all(len(form.fields) == len(form.paths) for form in forms)


def test_control_f_leads_to_the_search_and_return_to_the_field(app):
    press(app, "<Control-f>")
    entry = app.top_bar.search
    assert app.focus_get() is entry._entry
    for text in ("w", "war", "warm-up"):
        entry.delete(0, "end")
        entry.insert(0, text)
        entry._entry.event_generate("<KeyRelease>", keysym="p")
    assert entry.found[0] == "schedule.warmup"
    entry._entry.event_generate("<Return>")
    app.update()
    assert app.tab_bar.selected == "training"
    assert entry.get() == ""
    assert app.focus_get() is find_field(app.tabs["training"], "schedule.warmup").entry._entry


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("learning rate", "optimizer.learning_rate"),
        ("batch_size", "batch_size"),
        ("EMA", "ema.enabled"),
        ("nccl", "distributed_backend"),
        ("resolution", "data.resolution"),
    ],
)
def test_settings_are_found_by_label_name_and_choice(text, path):
    assert path in find_settings(text)[:4]


def test_a_search_for_nothing_finds_nothing():
    assert find_settings("  ") == []
    assert find_settings("no such words anywhere") == []


def test_a_setting_that_does_not_matter_is_not_flashed_but_said_so(app):
    app.settings.set("method", "full")
    app.flash("lora.rank")
    assert "has no effect" in app.message.cget("text")


def test_problems_are_counted_and_a_click_leads_to_them(app):
    app.settings.set("optimizer.learning_rate", "3e-x")
    app.settings.set("optimizer.beta1", "1.2")
    assert app.bottom_bar.problems.cget("text") == "2 problems"
    app.bottom_bar.problems.invoke()
    app.update()
    first = app.problems.all()[0].path
    assert app.focus_get() is find_field(app.tabs["training"], first).entry._entry


def test_a_problem_of_an_advanced_setting_is_shown_although_only_basic_ones_are(app, settle):
    app.settings.set_many({"data.bucketing": True, "data.bucket_step": 32, "data.resolution": 32})
    app.open_tab("dataset")
    settle(app)
    app.settings.set("data.bucket_step", 64)
    app.bottom_bar.problems.invoke()
    settle(app)
    field = find_field(app.tabs["dataset"], "data.bucket_step")
    assert field.editor.winfo_ismapped()
    assert app.focus_get() is field.entry._entry
    assert field._problem.cget("text").startswith("Bucket resolution steps 64")
    field._remedy.invoke()
    settle(app)
    assert app.bottom_bar.problems.cget("text") == "No problems"
    assert not field._problem.winfo_manager()
    assert not field._remedy.winfo_manager()


def test_a_click_on_a_warning_shows_all_settings_if_its_field_is_hidden(app, settle):
    app.set_show_all(False)
    app.settings.set_many({"optimizer.beta1": 0.9, "optimizer.beta2": 0.8})
    assert [problem.path for problem in app.problems.all()] == ["optimizer.beta1"]
    tab = app.open_tab("training")
    settle(app)
    field = find_field(tab, "optimizer.beta1")
    assert not field.editor.winfo_ismapped()
    app.bottom_bar.problems.invoke()
    settle(app)
    assert app.filter.get() == "All"
    assert field.editor.winfo_ismapped()
    assert app.focus_get() is field.entry._entry


def test_the_list_of_problems_says_each_with_its_label_and_remedy_and_follows(app, settle):
    app.settings.set_many({"data.bucketing": True, "data.bucket_step": 64, "data.resolution": 32})
    app.settings.set("epochs", "many")
    app.bottom_bar.all_problems.invoke()
    window = next(one for one in app.winfo_children() if isinstance(one, ProblemsWindow))
    settle(app)
    shown = {row.label.cget("text"): row for row in window.rows if row.winfo_manager()}
    assert set(shown) == {"✕ Epochs", "✕ Bucket resolution steps"}
    assert not shown["✕ Epochs"].remedy.winfo_manager()
    shown["✕ Bucket resolution steps"].remedy.invoke()
    assert app.settings.get("data.bucket_step") == 8  # the largest that allows for more than the square
    assert [row.problem.path for row in window.rows if row.winfo_manager()] == ["epochs"]
    shown = next(row for row in window.rows if row.winfo_manager())
    shown.go.invoke()
    assert app.tab_bar.selected == "training"
    window.close()
    assert window.state() == "withdrawn"
    app.bottom_bar.all_problems.invoke()
    assert window.state() == "normal"


def test_start_is_refused_with_a_problem_and_leads_to_it(app, monkeypatch):
    monkeypatch.setattr(run_control, "run_check", lambda check: pytest.fail("checked in spite of a problem"))
    app.settings.set("optimizer.learning_rate", "3e-x")
    press(app, "<F5>")
    assert app.tab_bar.selected == "training"
    assert find_field(app.tabs["training"], "optimizer.learning_rate")._problem.cget("text").endswith("not a number.")
    assert not app.banner.winfo_manager()  # the message is said once
    assert not app.bottom_bar.control.is_checking


def test_f5_shows_the_summary_and_start_in_it_starts_the_run(app, wait_for, monkeypatch):
    from modules.ui.windows import RunSummaryWindow as module

    shown, started, seen = [], [], threading.Event()

    def run_check(check):
        seen.wait(120)
        return RunSummary((("Seed", str(check.seed)),))

    def check_of(config, resume):
        return SimpleNamespace(seed=config.seed, cancel=seen.set)

    monkeypatch.setattr(run_control, "CANCEL_MS", 600_000)
    monkeypatch.setattr(run_control, "check_of", check_of)
    monkeypatch.setattr(run_control, "run_check", run_check)
    monkeypatch.setattr(module, "RunSummaryWindow", lambda *arguments: shown.append(arguments) or SimpleNamespace())
    monkeypatch.setattr(app.run, "start", lambda config, resume: started.append((config, resume)))
    press(app, "<F5>")
    assert app.bottom_bar.start.cget("text") == "Checking…"
    seen.set()
    wait_for(app, lambda: shown)
    _, summary, start = shown[0]
    assert summary.splitlines()[0] == "Seed:          42"
    assert started == []
    start()
    assert started[0][0] == app.settings.config()
    assert started[0][1] is False
    assert app.bottom_bar.start.cget("text") == "Start training"
    app.run.state = replace(app.run.state, is_running=True)  # a run was found while the summary was open
    start()
    assert len(started) == 1
    assert "A run is active" in app.message.cget("text")
    app.settings.set("optimizer.beta1", "1.2")  # while the summary is open, which is not modal
    start()
    assert len(started) == 1
    assert "changed since the check" in app.message.cget("text")


def test_closing_the_window_ends_a_check(make_app, wait_for, monkeypatch):
    from modules.ui.models import ScriptRun as module

    monkeypatch.setattr(module, "ROOT", Path("sleeper").absolute())
    script = module.ROOT / "scripts" / "train.py"
    script.parent.mkdir(parents=True)
    script.write_text("import time\ntime.sleep(60)\n")
    app = make_app(tab="tools")
    app.bottom_bar.check.invoke()
    check = app.bottom_bar.control._check
    wait_for(app, lambda: check._child.process is not None)
    app.destroy()
    assert check._child.process.wait(120) != 0


def test_check_shows_the_summary_without_a_start(app, wait_for, monkeypatch):
    from modules.ui.windows import RunSummaryWindow as module

    shown = []
    monkeypatch.setattr(run_control, "run_check", lambda check: FINE)
    monkeypatch.setattr(module, "RunSummaryWindow", lambda *arguments: shown.append(arguments) or SimpleNamespace())
    app.bottom_bar.check.invoke()
    wait_for(app, lambda: shown)
    assert shown[0][1].splitlines()[0] == "Check:         fine"
    assert shown[0][2] is None


def test_what_the_check_refuses_is_said_at_its_field_until_it_is_changed(app, wait_for, monkeypatch):
    def refuse(check):
        raise UserError.at("model.base", "'x': no such model; choose another.")

    monkeypatch.setattr(run_control, "run_check", refuse)
    app.bottom_bar.check.invoke()
    wait_for(app, lambda: app.problems.all())
    assert app.tab_bar.selected == "model"
    assert app.problems.error("model.base") == "Base model 'x': no such model; choose another."
    assert not app.banner.winfo_manager()
    app.settings.set("model.base", "another/model")
    assert app.problems.all() == []


def test_a_start_that_fails_is_said_at_its_field_and_no_banner_stays(app, monkeypatch):
    def refuse(config, resume):
        raise UserError.at("workspace_dir", "'a' is in use by another run: choose another folder.")

    monkeypatch.setattr(app.run, "start", refuse)
    app.bottom_bar.control._start(app.settings.config(), resume=False)
    assert app.problems.error("workspace_dir") == "Output folder 'a' is in use by another run: choose another folder."
    assert not app.banner.winfo_manager()
    app.settings.set("workspace_dir", "b")
    assert app.problems.error("workspace_dir") is None


def test_a_message_names_settings_by_their_labels(app):
    app.show_message("cache_dir '/x' can't be written: choose another.")
    assert app.message.cget("text") == "Cache folder '/x' can't be written: choose another."


def test_what_the_check_refuses_of_no_setting_is_shown_in_the_list(app, wait_for, monkeypatch):
    def refuse(check):
        raise UserError("The Hub can't be reached: connect, and try again.")

    monkeypatch.setattr(run_control, "run_check", refuse)
    app.bottom_bar.check.invoke()
    wait_for(app, lambda: any(isinstance(one, ProblemsWindow) for one in app.winfo_children()))


@pytest.mark.parametrize("answer", ["Resume", "New folder", "Cancel", None])
def test_a_folder_that_holds_a_run_is_asked_about(app, wait_for, monkeypatch, tmp_path, answer):
    (tmp_path / "run" / "models" / "model").mkdir(parents=True)
    app.settings.set("workspace_dir", str(tmp_path / "run"))
    summaries = []
    monkeypatch.setattr(run_control, "ask", lambda *arguments: answer)
    control = app.bottom_bar.control
    monkeypatch.setattr(control, "_summarize", lambda resume, then_start: summaries.append(resume))
    control.start()
    assert summaries == {"Resume": [True], "New folder": [False]}.get(answer, [])
    name = "run-2" if answer == "New folder" else "run"
    assert app.settings.get("workspace_dir") == str(tmp_path / name)


def test_settings_that_change_during_a_run_say_once_that_they_count_for_the_next_one(app, monkeypatch, tmp_path):
    told = []
    monkeypatch.setattr(app, "show_message", lambda text, kind="info": told.append(text))
    app.settings.set("epochs", 2)
    assert told == []
    app.run.state = RunState(folder=tmp_path / "cat", is_running=True, started=1.0)
    app.settings.set("epochs", 3)
    app.settings.set("seed", 3)
    assert told == ["Changed settings count for the next run: cat keeps those that it was started with."]
    app.run.state = RunState(folder=tmp_path / "cat", is_running=True, started=2.0)
    app.settings.set("epochs", 4)
    assert len(told) == 2
    app.run.state = RunState()


@pytest.mark.parametrize(("status", "first"), [("finished", "New folder"), ("stopped", "Resume"), ("failed", "Resume")])
def test_resuming_is_the_first_answer_unless_the_run_has_finished(app, monkeypatch, tmp_path, status, first):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    (folder.models_dir / "model").mkdir(parents=True)
    folder.write_exit(status)
    app.settings.set("workspace_dir", str(folder.path))
    asked = []
    monkeypatch.setattr(run_control, "ask", lambda app, title, text, answers: asked.append((text, answers)))
    app.bottom_bar.control.start()
    ((text, answers),) = asked
    assert answers[0] == first
    assert set(answers) == {"Resume", "New folder", "Cancel"}
    assert ("has finished" in text) is (status == "finished")
    assert "new run in run-2?" in text


def test_two_fast_presses_of_start_or_of_check_make_one_check(app, wait_for, monkeypatch):
    from modules.ui.windows import RunSummaryWindow as module

    checks, shown = [], []
    monkeypatch.setattr(run_control, "run_check", lambda check: checks.append(check) or FINE)
    monkeypatch.setattr(module, "RunSummaryWindow", lambda *arguments: shown.append(arguments) or SimpleNamespace())
    bar = app.bottom_bar
    for number, press_it in enumerate((bar.start.invoke, bar.check.invoke, bar.control.start, bar.control.resume), 1):
        press_it()
        press_it()
        wait_for(app, lambda number=number: len(shown) == number)
        assert len(checks) == number


def test_two_fast_presses_of_start_ask_once_about_a_folder_that_holds_a_run(app, tmp_path, monkeypatch, answer_all):
    (tmp_path / "run" / "models" / "model").mkdir(parents=True)
    app.settings.set("workspace_dir", str(tmp_path / "run"))
    asked = answer_all("Cancel")
    when_seen(monkeypatch, app.bottom_bar.start.invoke)
    app.bottom_bar.start.invoke()
    assert asked == ["Output folder"]


def test_a_second_press_of_start_in_the_summary_neither_starts_again_nor_stops_the_run(app, wait_for, monkeypatch):
    started, stopped = [], []

    def start(config, resume):
        started.append(config)
        app.run.state = RunState(is_running=True)
        app.bottom_bar.show_run(app.run.state)

    monkeypatch.setattr(run_control, "run_check", lambda check: FINE)
    monkeypatch.setattr(app.run, "start", start)
    monkeypatch.setattr(app.run, "stop", lambda: stopped.append(1))
    app.focus_force()
    app.bottom_bar.start._canvas.focus_set()
    app.bottom_bar.start._canvas.event_generate("<Return>")
    wait_for(app, lambda: find_widget(app, RunSummaryWindow) is not None)
    summary = find_widget(app, RunSummaryWindow)
    wait_for(app, lambda: isinstance(summary.focus_lastfor().master, ctk.CTkButton))
    assert summary.focus_lastfor().master.cget("text") == "Start"
    summary.focus_lastfor().event_generate("<Return>")
    app.update()
    app.focus_lastfor().event_generate("<Return>")  # where the focus is once the summary is closed
    app.update()
    assert (len(started), stopped) == (1, [])


def test_two_fast_presses_of_stop_stop_once_and_force_nothing_by_themselves(app, monkeypatch, answer_all):
    done = []

    def stop():
        done.append("stop")
        app.run.state = replace(app.run.state, is_stopping=True)
        app.bottom_bar.show_run(app.run.state)

    monkeypatch.setattr(app.run, "stop", stop)
    monkeypatch.setattr(app.run, "force_stop", lambda: done.append("force"))
    app.run.state = RunState(is_running=True)
    app.bottom_bar.show_run(app.run.state)
    asked = answer_all("Wait")
    app.bottom_bar.start.invoke()
    when_seen(monkeypatch, app.bottom_bar.start.invoke)  # a third one
    app.bottom_bar.start.invoke()
    assert done == ["stop"]
    assert asked == ["Force stop"]


def test_the_first_stop_ends_the_step_and_the_second_forces(app, monkeypatch):
    asked = []
    monkeypatch.setattr(app.run, "stop", lambda: asked.append("stop"))
    monkeypatch.setattr(app.run, "force_stop", lambda: asked.append("force"))
    monkeypatch.setattr(run_control, "ask", lambda *arguments, **options: "Force stop")
    for is_stopping, text in ((False, "Stop"), (True, "Force stop")):
        app.run.state = RunState(is_running=True, is_stopping=is_stopping)
        app.bottom_bar.show_run(app.run.state)
        assert app.bottom_bar.start.cget("text") == text
        app.bottom_bar.start.invoke()
    assert asked == ["stop", "force"]


def test_the_progress_says_step_loss_speed_and_time_left():
    from pathlib import Path

    state = RunState(
        folder=Path("run"),
        phase="Training",
        is_running=True,
        epoch=3,
        step=1200,
        total=2000,
        smooth=0.1234,
        steps_per_second=2.5,
        samples_per_second=80,
        eta_seconds=3723,
    )
    text = describe_progress(state)
    assert (
        text == "run   Training   epoch 3   step 1,200 of 2,000   loss 0.1234   ETA 1:02:03   2.50 it/s   80.0 images/s"
    )
    assert describe_progress(RunState()) == "No run yet"
    assert describe_progress(RunState(message="The run folder is gone.")) == "The run folder is gone."
    assert describe_seconds(59.6) == "01:00"


def test_help_opens_the_page_about_the_tab_in_front(app, monkeypatch):
    opened = []
    monkeypatch.setattr("modules.ui.TrainUI.open_file", opened.append)
    assert [name for name in TABS if not help_page(name).is_file()] == []
    app.open_tab("backup")
    app.help_button.invoke()
    app.open_tab("tools")
    press(app, "<F1>")
    assert opened == [help_page("backup"), help_page("tools")]


def test_a_page_that_no_program_opens_is_named_in_a_message(app, monkeypatch):
    monkeypatch.setattr("modules.ui.models.desktop.sys.platform", "linux")
    monkeypatch.setattr("modules.ui.models.desktop.shutil.which", lambda name: None)
    app.help_button.invoke()
    assert str(help_page(app.tab_bar.selected)) in app.message.cget("text")


def test_undo_and_redo_by_keys(app):
    app.settings.set("epochs", 3)
    press(app, "<Control-z>")
    assert app.settings.get("epochs") == 100
    press(app, "<Control-y>")
    assert app.settings.get("epochs") == 3


@pytest.fixture
def answer_dialog(monkeypatch):
    """`answer_dialog(answer)`: what Tk's dialog for a new file returns, whatever dialogs this desktop has."""
    monkeypatch.setattr("modules.ui.widgets.dialogs.picker_command", lambda question: None)
    return lambda answer: monkeypatch.setattr("modules.ui.widgets.dialogs.filedialog.asksaveasfilename", answer)


def test_save_asks_for_a_file_once_and_then_writes_it(app, tmp_path, answer_dialog):
    asked = []
    target = tmp_path / "mine.yaml"
    answer_dialog(lambda **options: asked.append(1) or target)
    app.settings.set("epochs", 3)
    press(app, "<Control-s>")
    app.settings.set("epochs", 4)
    assert app.top_bar.modified.cget("text") == "modified (1)"
    press(app, "<Control-s>")
    assert len(asked) == 1
    assert load_config(target).epochs == 4
    assert "mine.yaml" in app.top_bar.preset.cget("text")
    assert not app.top_bar.modified.winfo_ismapped()


def test_two_fast_presses_of_save_as_ask_for_one_file(app, tmp_path, answer_dialog):
    asked = []

    def ask(**options) -> str:
        asked.append(options["title"])
        if len(asked) < 5:
            app.top_bar.save_as()  # the second press comes before the dialog blocks the window
        return str(tmp_path / f"{len(asked)}.yaml")

    answer_dialog(ask)
    app.top_bar.save_as()
    assert asked == ["Save settings as"]
    assert app.settings.source_file == str(tmp_path / "1.yaml")


def test_a_file_that_can_not_be_used_changes_nothing_and_says_why(app, tmp_path):
    (tmp_path / "new.yaml").write_text("config_version: 99\n")
    before = app.settings.values
    app.top_bar.open_file(tmp_path / "new.yaml")
    assert "newer than this Chorus" in app.message.cget("text")
    assert app.settings.values == before


def test_a_window_that_tk_has_made_by_itself_disturbs_nothing(app):
    """Such as the file dialog on Linux, which is kept for reuse. An exception in a callback fails the test."""
    app.tk.eval("toplevel .__tk_filedialog; pack [entry .__tk_filedialog.name]")
    app.update()
    app.tk.eval("focus -force .__tk_filedialog.name")
    app.update()
    assert app.focus_get() is None
    app.top_bar.choose_preset().destroy()
    app.theme.set_appearance("light")
    app.theme.set_appearance("dark")
    app.set_show_all(True)
    app.tk.eval("destroy .__tk_filedialog")


def test_nothing_is_kept_of_a_window_that_was_closed(make_app):
    app = make_app(tab="tools")
    window = app.top_bar.choose_preset()
    assert window in ctk.ScalingTracker.window_dpi_scaling_dict
    window.destroy()
    assert window not in ctk.ScalingTracker.window_dpi_scaling_dict
    assert app in ctk.ScalingTracker.window_dpi_scaling_dict
    app.theme.set_scale(1.2)  # updates all widgets that it keeps


def test_a_preset_is_found_by_search_and_taken(app, wait_for):
    window = app.top_bar.choose_preset()
    wait_for(app, window.table.get_children)
    window.search.insert(0, "sdxl lora")
    window.show_rows()
    assert window.table.get_children()[0] == "preset:sdxl-lora"
    window.search._entry.focus_force()
    app.update()
    window.search._entry.event_generate("<Return>")
    app.update()
    assert not window.winfo_exists()
    assert app.settings.preset_name == "sdxl-lora"
    assert app.top_bar.family.get() == "Stable Diffusion XL"


def test_presets_are_listed_for_the_gpus_that_are_chosen(app, wait_for):
    window = app.top_bar.choose_preset()
    window.memory.set("8 GB")
    window.num_gpus.set("4 GPUs")
    window._choose()
    wait_for(app, lambda: {"preset:demo", "preset:sdxl-lora-8gb-x4"} <= set(window.table.get_children()))
    window.search.insert(0, "sd3-full")
    window.show_rows()
    assert window.table.get_children() == ("preset:sd3-full-8gb-x4",)
    app.update()
    assert window.detail.cget("text").startswith("The text encoders need")
    before = app.settings.values
    window._act(dict(window._actions)["Apply"])
    assert "preset sd3-full-8gb is not offered: The text encoders need" in app.message.cget("text")
    assert app.settings.values == before


def test_the_preset_that_the_settings_come_from_is_selected_and_others_of_its_family_are_a_choice(app, wait_for):
    app.settings.load_preset("sd15-lora-8gb")
    window = app.top_bar.choose_preset()
    wait_for(app, lambda: window.table.selection() == ("preset:sd15-lora",))
    window.family.set("Stable Diffusion 1.x / 2.x")
    window._choose()
    wait_for(app, lambda: not window.table.exists("preset:sdxl-lora"))
    assert window.table.selection() == ("preset:sd15-lora",)


def test_files_used_last_are_listed_above_the_presets(app, wait_for, tmp_path):
    path = tmp_path / "mine.yaml"
    path.touch()
    app.preferences.recent = [f"/{'x' * 300}.yaml", str(path)]  # the first one can't be accessed
    window = app.top_bar.choose_preset()
    wait_for(app, lambda: {"preset:demo", f"file:{path}"} <= set(window.table.get_children()))
    assert window.table.get_children()[0] == f"file:{path}"
    assert window.table.selection() == ("preset:demo",)  # what the settings are from


def test_what_a_preset_would_change_is_shown_before_it_is_taken(app, wait_for):
    app.settings.set("epochs", 3)
    window = app.top_bar.choose_preset()
    wait_for(app, window.table.get_children)
    window.table.selection_set("preset:sdxl-lora")
    window._act(dict(window._actions)["Show changes…"])
    assert app.settings.get("family") == "sd15"
    comparison = opened_changes(app)
    assert comparison.table.item("epochs", "values")[1:] == ("3", "100")
    assert comparison.table.item("concepts", "values")[1:] == ("2", "0")
    assert not comparison.table.exists("seed")
    comparison._act(dict(comparison._actions)["Apply"])
    assert (app.settings.get("family"), app.settings.preset_name) == ("sdxl", "sdxl-lora")
    assert app.message.cget("text") == ""


def test_closing_the_changes_of_a_preset_returns_to_the_choice_and_taking_them_ends_it(app, wait_for):
    window = app.top_bar.choose_preset()
    wait_for(app, lambda: window.table.exists("preset:sdxl-lora"))
    window.search.insert(0, "sdxl")
    window.show_rows()
    window.table.selection_set("preset:sdxl-lora")
    window.table.focus_set()
    show_changes = dict(window._actions)["Show changes…"]
    window._act(show_changes)
    opened_changes(app).destroy()
    assert window.winfo_exists()
    assert (window.search.get(), window.table.selection()) == ("sdxl", ("preset:sdxl-lora",))
    assert app.root.focus_get() is window.table
    window._act(show_changes)
    comparison = opened_changes(app)
    comparison._act(dict(comparison._actions)["Apply"])
    assert app.settings.preset_name == "sdxl-lora"
    assert not window.winfo_exists()


def test_taking_a_preset_while_the_list_of_its_changes_is_open_closes_the_list_too(app, wait_for):
    window = app.top_bar.choose_preset()
    wait_for(app, lambda: window.table.exists("preset:sdxl-lora"))
    window.table.selection_set("preset:sdxl-lora")
    window._act(dict(window._actions)["Show changes…"])
    comparison = opened_changes(app)
    window._act(dict(window._actions)["Apply"])
    wait_for(app, lambda: not comparison.winfo_exists())
    assert app.settings.preset_name == "sdxl-lora"


def opened_changes(app) -> ChangesWindow:
    return next(child for child in app.winfo_children() if isinstance(child, ChangesWindow))


def test_a_preset_says_what_it_has_kept_and_one_undo_brings_all_back(app, wait_for, settle):
    app.settings.set("concepts.0.path", "my images")
    app.settings.set("workspace_dir", "my run")
    before = app.settings.values
    window = app.top_bar.choose_preset()
    wait_for(app, window.table.get_children)
    window.table.selection_set("preset:sd15-lora")
    window._act(dict(window._actions)["Show changes…"])
    comparison = opened_changes(app)
    assert comparison.table.exists("epochs") is False  # 100 in both
    assert comparison.table.exists("lora.targets")
    assert not any(comparison.table.exists(path) for path in ("concepts", "concepts.0.path", "workspace_dir"))
    comparison._act(dict(comparison._actions)["Apply"])
    assert app.message.cget("text") == "Kept your output folder, concepts. Undo reverts the rest."
    assert app.top_bar.modified.cget("text") == "modified (2)"
    app.open_tab("general")
    settle(app)
    assert find_field(app.tabs["general"], "workspace_dir")._dot.cget("text") == "●"
    app.settings.undo()
    assert (app.settings.values, app.settings.preset_name) == (before, "demo")


def test_an_added_concept_is_not_offered_to_go_back_to_what_the_preset_does_not_have(app, settle, monkeypatch):
    from modules.ui.widgets.form import SettingsForm

    monkeypatch.setattr("modules.ui.widgets.Field.tkinter.Menu.tk_popup", lambda *arguments: None)
    app.settings.add("concepts", {"repeats": 3.0})
    form = SettingsForm(app, app, ["concepts.0.repeats", "concepts.2.repeats"])
    form.finish()
    assert menu_of(form.fields["concepts.0.repeats"]) == ["Reset", "Back", "Copy"]
    assert menu_of(form.fields["concepts.2.repeats"]) == ["Reset", "Copy"]


def test_menus_of_fields_take_the_place_of_each_other(app, settle, monkeypatch):
    from modules.ui.widgets.form import SettingsForm

    monkeypatch.setattr("modules.ui.widgets.Field.tkinter.Menu.tk_popup", lambda *arguments: None)
    form = SettingsForm(app, app, ["seed", "batch_size"])
    form.finish()
    for path in ("seed", "batch_size", "seed"):
        form.fields[path]._open_menu(SimpleNamespace(x_root=1, y_root=1))
    assert len([child for child in app.winfo_children() if isinstance(child, tkinter.Menu)]) == 1


def menu_of(field) -> list[str]:
    """The first words of the entries of a field's menu."""
    field._open_menu(SimpleNamespace(x_root=1, y_root=1))
    menu = next(child for child in field.app.winfo_children() if isinstance(child, tkinter.Menu))
    texts = [menu.entrycget(number, "label").partition(" ")[0] for number in range(menu.index("end") + 1)]
    menu.destroy()
    return texts


def test_changes_are_listed_and_taken_back(app):
    app.settings.set("epochs", 3)
    app.settings.set("batch_size", 8)
    window = app.top_bar.show_changes()
    assert set(window.table.get_children()) == {"epochs", "batch_size"}
    assert window.table.item("epochs", "values")[1:] == ("100", "3")
    window.table.selection_set("epochs")
    window._act(dict(window._actions)["Revert"])
    assert app.settings.modified_paths() == ["batch_size"]


def test_the_lists_of_changes_follow_the_settings_behind_them(app, wait_for):
    app.settings.set("epochs", 3)
    changes = app.top_bar.show_changes()
    app.settings.set("batch_size", 8)
    changes.table.selection_set("batch_size")
    app.settings.set("epochs", 100)
    app.settings.set("seed", 7)
    assert (changes.table.get_children(), changes.table.selection()) == (("seed", "batch_size"), ("batch_size",))
    app.settings.load_preset("sdxl-lora")
    assert changes.title() == "Changes to sdxl-lora"
    assert changes.table.heading("First", "text") == "In sdxl-lora"

    presets = app.top_bar.choose_preset()
    wait_for(app, presets.table.get_children)
    presets.table.selection_set("preset:demo")
    presets._act(dict(presets._actions)["Show changes…"])
    comparison = opened_changes(app)
    app.settings.set("epochs", 77)
    assert comparison.table.item("epochs", "values")[1:] == ("77", "100")


def test_family_and_method_follow_the_settings_and_set_them(app):
    app.top_bar.family._command("Stable Diffusion XL")
    assert app.settings.get("family") == "sdxl"
    app.settings.set("method", "full")
    assert app.top_bar.method.get() == "Full fine-tune"


def test_control_tab_goes_around_the_tabs(app):
    app.open_tab("monitor")
    press(app, "<Control-Tab>")
    assert app.tab_bar.selected == "home"
    press(app, "<Control-Prior>")
    assert app.tab_bar.selected == "monitor"


def test_the_last_state_comes_back(make_app, tmp_path, wait_for):
    window = make_app(tmp_path / "state")
    window.settings.set("epochs", 3)
    window.settings.set("batch_size", "four")
    window.set_show_all(True)
    window.open_tab("dataset")
    wait_for(window, lambda: (tmp_path / "state" / "settings.json").exists())
    window.destroy()
    again = make_app(tmp_path / "state")
    assert again.settings.get("epochs") == 3
    assert again.settings.typed == {"batch_size": "four"}
    assert again.tab_bar.selected == "dataset"
    assert again.filter.get() == "All"


def test_the_last_state_is_on_the_disk_before_the_window_closes(make_app, tmp_path, wait_for):
    path = tmp_path / "state" / "settings.json"
    window = make_app(tmp_path / "state")
    window.settings.set("epochs", 3)
    wait_for(window, lambda: path.exists() and json.loads(path.read_text())["values"]["epochs"] == 3)


def test_save_goes_on_writing_to_the_file_of_the_last_time(make_app, tmp_path):
    window = make_app(tmp_path / "state")
    window.top_bar._save_to(tmp_path / "mine.yaml")
    window.destroy()
    again = make_app(tmp_path / "state")
    again.settings.set("epochs", 3)
    again.top_bar.save()
    assert load_config(tmp_path / "mine.yaml").epochs == 3
    again.settings.load_preset("sdxl-lora")
    again.destroy()
    assert make_app(tmp_path / "state").settings.source_file == ""


def test_save_after_undo_writes_to_the_file_whose_settings_are_shown(app, tmp_path):
    for number, name in enumerate(("a.yaml", "b.yaml"), start=1):
        save_config(config_from_values({"epochs": number}), tmp_path / name)
        app.top_bar.open_file(tmp_path / name)
    press(app, "<Control-z>")
    assert "a.yaml" in app.top_bar.preset.cget("text")
    app.settings.set("seed", 7)
    press(app, "<Control-s>")
    assert (load_config(tmp_path / "a.yaml").epochs, load_config(tmp_path / "a.yaml").seed) == (1, 7)
    assert load_config(tmp_path / "b.yaml").epochs == 2


def test_how_a_person_likes_the_window_is_on_the_disk_before_it_closes(make_app, tmp_path, wait_for):
    path = tmp_path / "state" / "window.json"
    window = make_app(tmp_path / "state")
    save_config(window.settings.config(), tmp_path / "mine.yaml")
    window.top_bar.open_file(tmp_path / "mine.yaml")
    window.open_tab("dataset")
    window.set_show_all(True)
    expected = {"tab": "dataset", "show_all": True, "recent": [str(tmp_path / "mine.yaml")]}
    wait_for(window, lambda: path.exists() and expected.items() <= json.loads(path.read_text()).items())


def test_the_newest_backup_of_the_run_folder_is_offered_to_go_on_from(make_app, tmp_path, wait_for, monkeypatch):
    monkeypatch.setattr("modules.ui.cards.ResumeCard.LOOK_SECONDS", 1000.0)  # refreshed only when the folder changes
    app = make_app(tab="tools")
    backups = tmp_path / "run" / "backup"
    for step in (40, 1200, 2000):
        write_backup(backups, step)
    (backups / "step-000002000").rename(backups / "aside-step-000002000")
    write_backup(backups, 1500, without=("model.safetensors",))
    resumed = []
    monkeypatch.setattr(app.bottom_bar.control, "_summarize", lambda **how: resumed.append(how))
    app.settings.set("workspace_dir", str(tmp_path / "run"))
    wait_for(app, lambda: resume_buttons(app))
    (button,) = resume_buttons(app)
    assert button.cget("text").startswith("Resume run from step 1,200, ")
    button.invoke()
    assert resumed == [{"resume": True, "then_start": True}]


@pytest.mark.parametrize(("status", "is_offered"), [("finished", False), ("stopped", True), ("failed", True)])
def test_a_run_that_has_finished_is_not_offered_to_go_on_from(tmp_path, status, is_offered):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.event_path(0).touch()
    folder.write_exit(status)
    write_backup(folder.backup_dir, 95)
    runs, backup = look(str(folder.path))
    assert [info.status for info in runs] == [status]
    assert (backup is not None) is is_offered


def test_without_a_run_the_general_tab_names_the_output_folder_as_its_field_does(app, wait_for):
    app.settings.set("workspace_dir", "nothing/here")
    tab = app.open_tab("general")
    wait_for(app, lambda: "No runs in the folder of the output folder yet." in " ".join(texts_in(tab)))
    wait_for(app, lambda: any(re.fullmatch(r"Chorus \S.+", text) for text in texts_in(tab)))  # its version


def texts_in(widget) -> list[str]:
    own = [widget.cget("text")] if isinstance(widget, ctk.CTkLabel) else []
    return own + [text for child in widget.winfo_children() for text in texts_in(child)]


def resume_buttons(app) -> list:
    return [one for one in buttons_in(app.open_tab("general")) if one.cget("text").startswith("Resume ")]


def buttons_in(widget) -> list:
    own = [widget] if isinstance(widget, ctk.CTkButton) else []
    return own + [one for child in widget.winfo_children() for one in buttons_in(child)]


def test_a_home_that_nobody_has_is_a_problem_of_the_settings_and_no_fault(app, wait_for):
    app.settings.set("workspace_dir", "~nobody-of-this-name/run")
    app.settings.set("model.base", "~nobody-of-this-name/model")
    app.open_tab("general")
    wait_for(app, lambda: "~nobody" in (app.problems.error("model.base") or ""))
    app._find_run()
    assert next_free_folder("~nobody-of-this-name/run") == "~nobody-of-this-name/run-2"


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps the folder that a process works in")
def test_a_working_folder_that_goes_is_told_where_something_is_asked_and_the_window_closes(
    make_app, wait_for, settle, tmp_path, monkeypatch
):
    app = make_app(tab="tools")
    from modules.ui.widgets.dialogs import open_window
    from modules.ui.windows.MultiNodeWindow import MultiNodeWindow

    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    backups = app.open_tab("backup")
    wait_for(app, lambda: not app.is_building and "no longer exists" in backups._note.cget("text"))
    command = app.open_tab("multi-GPU")
    wait_for(app, lambda: command.is_built and "no longer exists" in command.command_card._note.cget("text"))
    assert "no longer exists" not in app.message.cget("text")  # not repeated every two seconds
    app.bottom_bar.control.start()
    assert any("no longer exists" in problem.message for problem in app.problems.all())
    assert any(isinstance(one, ProblemsWindow) for one in app.winfo_children())
    window = open_window(app, MultiNodeWindow)
    assert "no longer exists" in window.commands._note.cget("text")
    app.destroy()


HALF_MADE = {
    "ConceptWindow": "_build_pictures",
    "DoctorWindow": "add_button",
    "HealthWindow": "_build_findings",
    "MultiNodeWindow": "_build_places",
}


def test_a_window_that_could_not_be_made_does_not_keep_the_others_open(make_app, monkeypatch):
    app = make_app(tab="tools")

    def fail(*arguments, **options):
        raise RuntimeError("half made")

    for name, method in HALF_MADE.items():
        kind = getattr(importlib.import_module(f"modules.ui.windows.{name}"), name)
        monkeypatch.setattr(kind, method, fail)
        with pytest.raises(RuntimeError, match="half made"):
            kind(app, app) if name == "ConceptWindow" else kind(app)
    app.destroy()


def test_a_second_window_says_so_and_keeps_nothing(make_app, tmp_path):
    first = make_app(tmp_path / "state")
    second = make_app(tmp_path / "state")
    assert "Another window" in second.message.cget("text")
    second.settings.set("epochs", 3)
    second.destroy()
    first.destroy()
    assert make_app(tmp_path / "state").settings.get("epochs") == 100


def test_a_place_that_can_not_be_written_is_a_message(make_app, tmp_path):
    (tmp_path / "file").write_text("")
    window = make_app(tmp_path / "file" / "state")
    assert "can't be written" in window.message.cget("text")


@pytest.fixture
def shown_run(app, tmp_path, wait_for):
    """The folder of a running run shown in the window, whose event file is cut in the middle of its second step."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    event = {"time": 1.0, "type": "step", "rank": 0, "epoch": 1, "steps_total": 9, "lr": 1e-4}
    first, second = (json.dumps({**event, "step": step, "samples": 1, "seconds": 1.0}) for step in (1, 2))
    folder.event_path(0).write_text(f"{first}\n{second[:-20]}")
    with RunLock(folder.lock_path):
        app.run.attach(folder.path)
        wait_for(app, lambda: "step 1 of 9" in app.bottom_bar.status.cget("text"))
        yield folder


def test_a_run_whose_events_are_cut_in_a_line_is_shown_on_every_tab_and_its_folder_that_vanishes_is_a_message(
    app, shown_run, tmp_path, wait_for
):
    for name in TABS:
        app.open_tab(name)
        app.update()
    assert app.run.state.step == 1
    shown_run.path.rename(tmp_path / "away")
    wait_for(app, lambda: "is gone: connect its disk again" in app.bottom_bar.status.cget("text"))
    app.bottom_bar.start.invoke()
    assert str(shown_run.path) in app.message.cget("text")
    for name in TABS:
        app.open_tab(name)
        app.update()
    (tmp_path / "away").rename(shown_run.path)
    wait_for(app, lambda: "step 1 of 9" in app.bottom_bar.status.cget("text"))


def failed_run(path, text) -> RunFolder:
    folder = RunFolder(path)
    folder.create()
    event = {"time": 1.0, "type": "step", "rank": 0, "epoch": 1, "step": 19, "steps_total": 100, "lr": 1e-4}
    folder.event_path(0).write_text(json.dumps({**event, "samples": 1, "seconds": 1.0}) + "\n")
    folder.write_exit("failed", rank=1, kind="killed", text=text, signal="SIGKILL")
    return folder


def test_a_run_that_failed_while_the_window_was_closed_says_why_once(make_app, wait_for, tmp_path):
    failed_run(tmp_path / "workspace" / "demo", "Rank 1 was killed by SIGKILL.\nMore of it.")
    app = make_app()
    wait_for(app, lambda: "failed" in app.message.cget("text"))
    expected = "The run demo failed: Rank 1 was killed by SIGKILL. Its report is on the Tools tab."
    assert (app.message.cget("text"), app.message.cget("text_color")) == (expected, Theme.error)
    assert find_widget(app, CrashReportWindow) is None
    app.show_message("All is well.")
    for _ in range(2):  # the run is read again
        before = app.run.state
        wait_for(app, lambda before=before: app.run.state is not before)
    assert app.message.cget("text") == "All is well."


def test_a_run_that_fails_while_the_dialog_for_a_file_is_open_shows_its_report(app, wait_for, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr("modules.ui.TrainUI.notify", lambda title, text: told.append(title))
    folder = RunFolder(tmp_path / "run")
    folder.create()
    with RunLock(folder.lock_path):
        folder.event_path(0).touch()
        app.run.attach(folder.path)
        wait_for(app, lambda: app.run.state.is_running)
        app.tk.eval("toplevel .__tk_filedialog; pack [entry .__tk_filedialog.name]")
        app.update()
        app.tk.eval("focus -force .__tk_filedialog.name")
        app.update()
        folder.write_exit("failed", rank=1, kind="killed", text="Rank 1 was killed by SIGKILL.", signal="SIGKILL")
    wait_for(app, lambda: not app.run.state.is_running)
    assert find_widget(app, CrashReportWindow) is not None
    assert told == []  # the dialog is a window of Chorus, too
    app.tk.eval("destroy .__tk_filedialog")


def test_an_opened_run_that_has_failed_says_why_each_time(app, wait_for, tmp_path):
    runs = [failed_run(tmp_path / "runs" / name, f"Because of {name}.") for name in ("first", "second")]
    app.open_tab("general")
    wait_for(app, lambda: find_widget(app, ResumeCard))
    card = find_widget(app, ResumeCard)
    for folder in (*runs, runs[0]):
        card._open(run_info(folder.path))
        assert app.message.cget("text") == f"Showing the run {folder.path.name}."
        wait_for(app, lambda folder=folder: f"Because of {folder.path.name}" in app.message.cget("text"))


def test_closing_twice_during_a_run_asks_once(app, monkeypatch, answer_all):
    app.run.state = RunState(is_running=True)
    asked = answer_all("Cancel")
    when_seen(monkeypatch, app.close)
    app.close()
    assert asked == ["Close the window"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("Cancel", []), (None, []), ("Keep training", ["closed"]), ("Stop and save", ["stopped", "closed"])],
)
def test_closing_during_a_run_asks_and_keeps_it_going_or_stops_it(make_app, monkeypatch, answer, expected):
    app = make_app(tab="tools")
    done, destroy = [], app.destroy
    monkeypatch.setattr("modules.ui.TrainUI.ask", lambda *arguments: answer)
    monkeypatch.setattr(app.run, "stop", lambda: done.append("stopped"))
    monkeypatch.setattr(app, "destroy", lambda: (done.append("closed"), destroy()))
    app.run.state = RunState(is_running=True)
    app.close()
    assert done == expected


def test_a_question_is_answered_by_its_buttons_and_closed_by_escape(app):
    for answer in ("Yes", "No"):
        when_asked(app, lambda question, answer=answer: question.buttons[answer].invoke())
        assert dialogs.ask(app, "Sure", "Really?", ("Yes", "No")) == answer
    when_asked(app, lambda question: (question.focus_force(), question.event_generate("<Escape>")))
    assert dialogs.ask(app, "Sure", "Really?", ("Yes", "No")) is None


def test_a_question_that_is_closed_before_it_is_seen_has_no_answer(app, monkeypatch):
    wait = dialogs.Question.wait_visibility
    monkeypatch.setattr(dialogs.Question, "wait_visibility", lambda question: (question.destroy(), wait(question)))
    assert dialogs.ask(app, "Sure", "Really?", ("Yes", "No")) is None


def test_a_question_is_not_asked_again_while_it_waits(app, monkeypatch, answer_all):
    asked, again = answer_all("Yes"), []
    for _ in range(2):  # and it does not prevent the next one
        when_seen(monkeypatch, lambda: again.append(dialogs.ask(app, "Sure", "Really?", ("Yes", "No"))))
        assert dialogs.ask(app, "Sure", "Really?", ("Yes", "No")) == "Yes"
    assert again == [None, None]
    assert asked == ["Sure", "Sure"]


def when_seen(monkeypatch, act) -> None:
    """Do something when the next question is visible but does not yet block the window."""
    hold = dialogs.Question.grab_set

    def act_and_hold(question) -> None:
        monkeypatch.setattr(dialogs.Question, "grab_set", hold)
        act()
        hold(question)

    monkeypatch.setattr(dialogs.Question, "grab_set", act_and_hold)


@pytest.fixture
def answer_all(app):
    """`answer_all(answer)`: answer each question of the window from now on; returns a list, which gets their titles."""
    timers = []

    def start(answer: str) -> list[str]:
        titles = []

        def look() -> None:
            question = app.grab_current()
            if isinstance(question, dialogs.Question):
                titles.append(question.title())
                question.choose(answer)
            timers[:] = [app.after(20, look)]

        look()
        return titles

    yield start
    for timer in timers:
        app.after_cancel(timer)


def when_asked(app, act):
    """Do something with the window's question, once it blocks the window."""
    question = app.grab_current()
    if isinstance(question, dialogs.Question):
        act(question)
    else:
        app.after(20, when_asked, app, act)


def test_work_in_the_background_comes_back_on_the_thread_of_the_window(app, wait_for):
    seen = []
    app.in_background(threading.get_ident, lambda worker: seen.append((worker, threading.get_ident())))
    wait_for(app, lambda: seen)
    worker, window = seen[0]
    assert window == threading.get_ident() != worker


def test_what_fails_in_the_background_is_handed_over(app, wait_for):
    seen = []
    app.in_background(lambda: 1 / 0, lambda result: None, seen.append)
    wait_for(app, lambda: seen)
    assert isinstance(seen[0], ZeroDivisionError)


def test_a_thread_that_can_not_be_made_is_a_failure_of_the_work(app, wait_for, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    started, failures = [], []
    app.in_background(lambda: 0, started.append)
    wait_for(app, lambda: started)  # before the window is drawn, no thread is
    with monkeypatch.context() as patch:
        patch.setattr(app, "_threads", WorkerThreads())  # none of which is idle
        patch.setattr(threading.Thread, "start", refuse)
        app.in_background(lambda: 1, failures.append, failures.append)
    wait_for(app, lambda: failures)
    assert [str(error) for error in failures] == ["can't start new thread"]


def test_a_job_that_fails_does_not_keep_the_others_from_running(make_app, wait_for, monkeypatch):
    app = make_app(tab="tools")
    faults, runs = [], []
    monkeypatch.setattr(app, "report_callback_exception", lambda *fault: faults.append(fault))
    app.every(0.01, lambda: 1 / 0)
    cancel = app.every(0.01, lambda: runs.append(1))
    wait_for(app, lambda: len(runs) > 3 and faults)
    cancel()
    count = len(runs)
    end = time.monotonic() + 0.2
    wait_for(app, lambda: time.monotonic() > end)
    assert len(runs) == count


def test_what_is_raised_in_a_callback_or_a_thread_is_a_fault_of_the_test(make_app, wait_for, faults):
    app = make_app(tab="tools")
    app.after(1, lambda: 1 / 0)
    app.in_background(lambda: {}["x"], lambda result: None)
    app.every(0.01, lambda: [][0])
    dialogs.Question(app, "Sure", "Really?", ("Yes",)).after(1, lambda: int("x"))
    kinds = {ZeroDivisionError, KeyError, IndexError, ValueError}
    wait_for(app, lambda: {type(fault) for fault in faults} == kinds)
    faults.clear()
    app.destroy()


def test_a_fault_is_shown_and_the_window_goes_on(app, capsys):
    from modules.ui.RootWindow import RootWindow

    try:
        raise RuntimeError("broken")
    except RuntimeError as error:
        RootWindow.report_callback_exception(app, RuntimeError, error, error.__traceback__)
    assert "broken" in app.message.cget("text")
    assert "RuntimeError: broken" in capsys.readouterr().err


def find_widget(widget, kind):
    children = widget.winfo_children()
    found = [child for child in children if isinstance(child, kind)]
    return found[0] if found else next(filter(None, (find_widget(child, kind) for child in children)), None)


def test_colours_size_and_preloading_are_changed_and_kept(make_app, wait_for, tmp_path):
    window = make_app(tmp_path / "state")
    window.open_tab("general")
    wait_for(window, lambda: find_widget(window, LookCard))
    look = find_widget(window, LookCard)
    look.appearance._command("Light")
    look.scale._command("125%")
    window.update()
    assert window.theme.now(Theme.card) == Theme.card[0]
    assert window.theme.scaled(100) == 125
    look.scale._command("100%")
    look.appearance._command("Dark")
    look.preloads.toggle()
    window.update()
    window.destroy()
    kept = json.loads((tmp_path / "state" / "window.json").read_text())
    assert kept["appearance"] == "dark"
    assert kept["preloads"] is False
    assert not Preferences.load(tmp_path / "state" / "window.json").preloads


def test_the_check_runs_in_a_process_of_its_own_and_says_what_the_run_would_do(app, tmp_path):
    app.settings.set("workspace_dir", str(tmp_path / "run"))
    app.settings.set("world_size", 1)
    labels = [label for label, _ in run_check(check_of(app.settings.config())).lines]
    assert "Steps" in labels
    assert "Images" in labels


def test_the_check_of_a_run_that_is_gone_on_with_does_not_mind_the_run_in_its_folder(app, tmp_path):
    (tmp_path / "run" / "models" / "model").mkdir(parents=True)
    app.settings.set("workspace_dir", str(tmp_path / "run"))
    app.settings.set("world_size", 1)
    assert "Steps:" in run_check(check_of(app.settings.config(), resume=True)).text()
    with pytest.raises(UserError, match="holds a run already"):
        run_check(check_of(app.settings.config()))


def test_the_check_hands_on_the_sentence_of_a_mistake(app, tmp_path):
    app.settings.set("concepts.0.path", str(tmp_path / "nothing"))
    with pytest.raises(UserError, match=r"concepts\.0\.path") as caught:
        run_check(check_of(app.settings.config()))
    assert caught.value.problems[0].path == "concepts.0.path"


def test_the_next_free_folder_has_the_next_number(tmp_path):
    (tmp_path / "run").mkdir()
    assert next_free_folder(str(tmp_path / "run")) == str(tmp_path / "run-2")
    (tmp_path / "run-2").mkdir()
    assert next_free_folder(str(tmp_path / "run-2")) == str(tmp_path / "run-3")
    assert next_free_folder(str(tmp_path / "cats-and-dogs")) == str(tmp_path / "cats-and-dogs-2")


def test_the_script_opens_a_file_and_keeps_its_state_where_it_is_told(display, tmp_path, make_app):
    from scripts import train_ui

    config = make_app().settings.config()
    config.epochs = 3
    save_config(config, tmp_path / "mine.yaml")
    arguments = ["--config", str(tmp_path / "mine.yaml"), "--state", str(tmp_path / "state")]
    seen = []

    def stop_at_once(window):
        window.update()
        seen.append((window.settings.preset_name, window.settings.get("epochs")))
        window.destroy()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("modules.ui.TrainUI.TrainUI.mainloop", stop_at_once)
        assert train_ui.main(arguments) == 0
    assert seen == [("mine.yaml", 3)]
    assert (tmp_path / "state" / "settings.json").exists()


def test_a_window_that_closes_while_its_threads_compute_is_not_aborted(display, tmp_path):
    program = ROOT / "tests" / "support" / "busy_window.py"
    for _ in range(2):
        command = [sys.executable, str(program), str(ROOT), "--state", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / "settings.json").exists()
