"""The window with all runs: what it shows, and what can be done there."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from modules.config.describe import settings_by_path
from modules.runs.marks import change_marks, read_marks
from modules.runs.RunIndex import FOLDER, RunIndex
from modules.session.RunLock import RunLock
from modules.ui.models.RunsModel import RunsModel, output_folders, picture_of
from modules.ui.widgets.dialogs import open_window
from modules.ui.windows import RunsWindow as runs_window
from modules.ui.windows.RunsWindow import RunsWindow
from tests.support.many_runs import START, make_run


@pytest.fixture
def app(shared_app):
    return shared_app


@pytest.fixture
def workspace(tmp_path) -> Path:
    """Three runs: cat-1, and two that came after it."""
    folder = tmp_path / "workspace"
    for number in (1, 2, 3):
        values = {"seed": number, "workspace_dir": str(folder / f"cat-{number}")}
        make_run(folder / f"cat-{number}", started=START + 100 * number, values=values)
    return folder


@pytest.fixture
def opened(app, workspace, wait_for, settle, monkeypatch) -> RunsWindow:
    """The window; its index is refreshed here, not in a process."""
    monkeypatch.setattr(RunsModel, "start", lambda model: [RunIndex(folder).refresh() for folder in model.folders])
    app.settings.set("workspace_dir", str(workspace / "next"))
    window = open_window(app, RunsWindow)
    wait_for(app, lambda: window.table.runs and all(run.row.is_read for run in window.table.runs))
    settle(app)
    return window


def shown(window: RunsWindow) -> list[str]:
    return [run.row.shown_name for run in window.table.shown()]


def choose(window: RunsWindow, *numbers: int) -> None:
    window.list.choose_folders([run.folder for run in window.table.runs if int(run.folder.name[-1]) in numbers])


def test_the_list_is_filtered_searched_and_sorted(app, opened, wait_for):
    assert shown(opened) == ["cat-3", "cat-2", "cat-1"]
    assert opened.chips["finished"].cget("text") == "Finished  3"
    _, order, left, _ = opened.list.columns()[0]
    assert order == "name"
    opened.list.canvas.event_generate("<Button-1>", x=left + 3, y=5)
    assert shown(opened) == ["cat-1", "cat-2", "cat-3"]
    opened.search.insert(0, "cat-2")
    opened._on_typed()
    wait_for(app, lambda: opened.list.count == 1)
    opened.chips["failed"].invoke()
    assert opened.list.count == 0


def test_a_narrow_list_keeps_the_state_of_runs(app, opened, settle):
    opened.geometry("640x420")
    settle(app)
    assert [title for title, *_ in opened.list.columns()] == ["Run", "State"]
    opened.geometry("1400x700")
    settle(app)
    assert opened.list.columns()[-1][0] == "Differs from the one before"


def test_what_is_noted_is_kept_in_the_run_folder(app, opened, wait_for, workspace):
    choose(opened, 2)
    opened.pane.name.insert(0, "Best")
    opened.pane.tags.insert(0, "soft, good")
    opened.pane.note.insert("1.0", "A note")
    choose(opened, 1)
    wait_for(app, lambda: read_marks(workspace / "cat-2").note == "A note")
    wait_for(app, lambda: "Best" in shown(opened))
    assert (read_marks(workspace / "cat-2").name, read_marks(workspace / "cat-2").tags) == ("Best", ("soft", "good"))
    assert opened.pane.name.get() == ""
    opened.list.canvas.event_generate("<Button-1>", x=5, y=opened.list.margins()[1] + 5)
    wait_for(app, lambda: read_marks(workspace / "cat-3").star)


def test_what_can_not_be_noted_any_more_as_the_window_closes_is_said(app, opened, wait_for, workspace, monkeypatch):
    monkeypatch.setattr("modules.runs.marks.write_json", refuse)
    choose(opened, 2)
    opened.pane.note.insert("1.0", "A note")
    opened.destroy()
    wait_for(app, lambda: any("(No space left on device)" in text and "A note" in text for text in app.banner.texts))


def refuse(path, values):
    raise OSError(28, "No space left on device")


def test_what_another_window_notes_is_shown_and_not_overwritten(app, opened, wait_for, workspace):
    choose(opened, 2)
    change_marks(workspace / "cat-2", name="Theirs")
    RunIndex(workspace).refresh()
    wait_for(app, lambda: opened.pane.name.get() == "Theirs")
    opened.pane.save()
    assert read_marks(workspace / "cat-2").name == "Theirs"


def test_a_run_can_be_started_again_with_all_its_settings_or_what_it_had_changed(app, opened, workspace):
    choose(opened, 3)
    assert "Seed: 2 → 3" in opened.pane.changes.cget("text")
    opened.buttons["Load settings"].invoke()
    assert (app.settings.get("seed"), app.settings.get("workspace_dir")) == (3, str(workspace / "cat-4"))
    app.settings.undo()
    assert app.settings.get("seed") == settings_by_path()["seed"].default
    app.settings.set("epochs", 77)
    opened.buttons["Load the difference"].invoke()
    assert (app.settings.get("seed"), app.settings.get("epochs")) == (3, 77)
    choose(opened, 1)
    assert opened.buttons["Load the difference"].cget("state") == "disabled"


def test_deleting_says_what_it_frees_and_leaves_models_unless_told_otherwise(
    app, opened, wait_for, workspace, monkeypatch
):
    asked = []
    answers = ["Cancel", "Keep the models"]
    monkeypatch.setattr(
        runs_window, "ask", lambda app, title, text, choices, danger: asked.append((text, choices)) or answers.pop(0)
    )
    (workspace / "cat-2" / "models").mkdir()
    (workspace / "cat-2" / "models" / "cat.safetensors").write_bytes(b"x" * 7000)
    choose(opened, 2)
    opened.buttons["Delete…"].invoke()
    wait_for(app, lambda: asked and not opened.note.cget("text"))
    assert "with the 1 model file (7 KB)" in asked[0][0]
    assert asked[0][1] == ("Cancel", "Keep the models", "Delete the models, too")
    assert len(shown(opened)) == 3
    opened.delete()
    wait_for(app, lambda: shown(opened) == ["cat-3", "cat-1"])
    left = {path.name for path in (workspace / "cat-2").iterdir()}
    assert left == {"models", "config.yaml"}
    assert "The models stay" in opened.note.cget("text")


def test_a_running_run_is_not_deleted(app, opened, wait_for, workspace, monkeypatch):
    monkeypatch.setattr(runs_window, "ask", None)
    choose(opened, 1)
    with RunLock(workspace / "cat-1" / "run.lock"):
        opened.delete()
        wait_for(app, lambda: "is running: stop it" in opened.note.cget("text"))


def test_without_an_index_the_names_are_there_before_the_events_are_read(workspace):
    model = RunsModel(output_folders(str(workspace / "next"), [str(workspace / "cat-1")]))
    assert model.folders == (workspace,)
    found = model.look(is_first=True)
    assert found is not None
    assert {(row.name, row.is_read) for row in found.rows[0][1]} == {(f"cat-{number}", False) for number in (1, 2, 3)}
    assert not (workspace / FOLDER).exists()
    assert model.look() is None


def test_the_process_beside_the_window_makes_the_index_and_ends_with_it(app, workspace, wait_for):
    app.settings.set("workspace_dir", str(workspace / "next"))
    window = open_window(app, RunsWindow)
    wait_for(app, lambda: window.table.runs and all(run.row.is_read for run in window.table.runs))
    child = window.model._child
    window.destroy()
    wait_for(app, lambda: not child.is_running)


def test_a_run_is_shown_by_its_result_or_its_last_sample(workspace):
    index = RunIndex(workspace)
    run = workspace / "cat-1"
    assert picture_of(workspace, index.read("cat-1")[0]) == ""
    sample = Path(index.read("cat-1")[0].sample)
    sample.parent.mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(sample)
    assert picture_of(workspace, index.read("cat-1")[0]) == str(sample)
    from modules.runs.marks import Result

    Image.new("RGB", (8, 8)).save(run / "best.png")
    change_marks(run, result=Result("best.png"))
    assert picture_of(workspace, index.read("cat-1")[0]) == str(run / "best.png")


def test_the_start_page_shows_a_run_by_its_name_and_result(workspace):
    from modules.runs.marks import Result
    from modules.ui.models.recent_runs import find_recent

    run = workspace / "cat-1"
    Image.new("RGB", (8, 8)).save(run / "best.png")
    change_marks(run, name="Best", result=Result("best.png"))
    (shown,) = (one for one in find_recent(str(workspace / "next"), [], []).runs if one.folder == run)
    assert (shown.name, shown.sample) == ("Best", run / "best.png")
