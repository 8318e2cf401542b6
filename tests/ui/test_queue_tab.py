"""The queue in the window: add, change, edit, move, a grid, and what a second window shows. Nothing is trained."""

from __future__ import annotations

import math

import pytest

from modules.queue.entry_events import append_event
from modules.queue.ProcessLock import ProcessLock, boot_id
from modules.queue.TrainingQueue import EntryOptions, TrainingQueue
from modules.ui.windows.GridWindow import GridWindow
from modules.ui.windows.QueueEntryWindow import QueueEntryWindow


@pytest.fixture
def started(monkeypatch) -> list:
    """The scripts that the window would have started."""
    found: list = []
    monkeypatch.setattr("modules.queue.processes._start", lambda script, *others: found.append(script.name) or script)
    return found


@pytest.fixture
def app(make_app, started, wait_for, monkeypatch):
    monkeypatch.setattr("modules.ui.TrainUI.AFTER_PAINT_MS", 0)  # its look after a reboot begins before a test does
    window = make_app(tab="queue")
    wait_for(window, lambda: hasattr(window.tabs["queue"], "buttons") and window.tabs["queue"]._ends)
    return window


def queue_of(app) -> TrainingQueue:
    return app.queue.queue


def opened(app, kind):
    return next(child for child in app.winfo_children() if type(child) is kind)


def names(app) -> list[str]:
    return [row.name for row in app.queue.view.rows]


def add(app, wait_for, *some: str) -> None:
    config = app.settings.config()
    queue_of(app).add_all([(config, EntryOptions(name=name)) for name in some])
    app.queue.look()
    wait_for(app, lambda: len(app.tabs["queue"].table.get_children()) == len(some))


def turn_on(app, wait_for) -> None:
    """Past the window, once it has seen at its start that no process has to be started."""
    wait_for(app, lambda: not app._waiting)
    queue_of(app).set_on(True)


def test_present_settings_are_added_with_options_and_the_queue_is_started(app, wait_for, started):
    app.bottom_bar.queue.invoke()
    window = opened(app, QueueEntryWindow)
    for field, text in (("Name", "cat"), ("Limit (hours)", "two")):
        window.entries[field].insert(0, text)
    window.save()
    assert "Limit 'two'" in window.problem.cget("text")
    window.entries["Limit (hours)"].delete(0, "end")
    window.entries["Limit (hours)"].insert(0, "2")
    window.save()
    wait_for(app, lambda: app.queue.view.rows)
    row = app.queue.view.rows[0]
    assert (row.name, row.state, row.limit_hours) == ("cat", "waiting", 2.0)
    app.queue.look()
    wait_for(app, lambda: app.queue.view.rows[0].cells[2] == "CPU, all cores")  # once the machine is known
    assert started == []
    assert any("start the queue" in text for text in app.banner.texts)
    app.tabs["queue"].start_or_pause()
    wait_for(app, lambda: app.queue.view.is_on)
    wait_for(app, lambda: not any("start the queue" in text for text in app.banner.texts))
    assert started == ["queue_runner.py"]
    assert app.tabs["queue"]._start.cget("text") == "Pause queue"


def test_entries_are_moved_paused_retried_copied_and_removed(app, wait_for, monkeypatch):
    add(app, wait_for, "a", "b", "c")
    tab = app.tabs["queue"]
    tab.table.selection_set(tab.table.get_children()[2])
    tab.move(-1)
    wait_for(app, lambda: names(app) == ["a", "c", "b"])
    assert [tab.table.item(id, "values")[0] for id in tab.table.get_children()] == ["a", "c", "b"]
    tab.pause_or_retry()
    wait_for(app, lambda: app.queue.view.rows[1].state == "paused")
    assert tab.buttons["Retry"].cget("text") == "Continue"
    tab.pause_or_retry()
    wait_for(app, lambda: app.queue.view.rows[1].state == "waiting")
    tab.copy()
    wait_for(app, lambda: names(app) == ["a", "c", "c (2)", "b"])
    monkeypatch.setattr("modules.ui.tabs.QueueTab.ask", lambda *arguments, **options: "Remove")
    tab.remove()
    wait_for(app, lambda: names(app) == ["a", "c (2)", "b"])


def test_settings_of_an_entry_are_edited_on_the_other_tabs_and_saved_back(app, wait_for):
    add(app, wait_for, "a")
    entry = queue_of(app).entries()[0]
    app.settings.set("seed", 5)
    app.tabs["queue"].table.selection_set(entry.id)
    app.tabs["queue"].edit()
    wait_for(app, lambda: app.queue.editing is not None)
    assert app.bottom_bar.queue.cget("text") == "Save to queue"
    assert app.settings.get("seed") != 5
    assert not app.settings.source_file  # Save must not write into the queue
    app.settings.set("seed", 77)
    app.bottom_bar.queue.invoke()
    wait_for(app, lambda: app.queue.editing is None)
    assert queue_of(app).entries()[0].config().seed == 77
    assert app.bottom_bar.queue.cget("text") == "Add to queue"
    assert app.settings.get("seed") == 5  # one's own settings are back


def test_undo_to_ones_own_settings_ends_the_editing_of_an_entry(app, wait_for):
    add(app, wait_for, "a")
    app.settings.set("seed", 5)
    app.tabs["queue"].edit()
    wait_for(app, lambda: app.queue.editing is not None)
    app.settings.set("seed", 77)
    app.settings.undo()
    assert app.queue.editing is not None
    app.settings.undo()
    assert app.queue.editing is None
    assert app.settings.get("seed") == 5  # which is not to be saved to the entry


def test_what_runs_or_has_failed_says_so_and_offers_what_is_possible(app, wait_for):
    add(app, wait_for, "a", "b")
    failed, running = queue_of(app).entries()
    append_event(failed.events_path, "ended", status="failed", text="concepts.0.path: no such folder.")
    claim = ProcessLock(running.claim_path)
    assert claim.take()
    append_event(running.events_path, "started", boot=boot_id())
    app.queue.look()
    wait_for(app, lambda: [row.state for row in app.queue.view.rows] == ["failed", "running"])
    tab = app.tabs["queue"]
    tab.table.selection_set(failed.id)
    wait_for(app, lambda: "no such folder" in tab._detail.cget("text"))
    enabled = {name for name, button in tab.buttons.items() if button.cget("state") == "normal"}
    assert enabled == {"Up", "Down", "Retry", "Copy", "Edit settings", "Options…", "Remove"}
    tab.table.selection_set(running.id)
    wait_for(app, lambda: tab.buttons["Pause"].cget("state") == "normal")
    enabled = {name for name, button in tab.buttons.items() if button.cget("state") == "normal"}
    assert enabled == {"Up", "Down", "Pause", "Copy", "Options…", "Monitor"}
    claim.release()


def test_a_grid_is_shown_before_it_is_added(app, wait_for):
    app.tabs["queue"].make_grid()
    window = opened(app, GridWindow)
    for (_, values, _), text in zip(window.fields, ("4, 8", "", "1, 2"), strict=False):
        values.insert(0, text) if text else None
    window._make()
    wait_for(app, lambda: window.runs)
    assert window.note.cget("text") == "2 x 2 = 4 runs"
    assert window.button.cget("text") == "Add 4 runs"
    window.fields[0][1].insert("end", ", 0")
    window._make()
    wait_for(app, lambda: not window.runs)
    assert "is 0: it must be" in window.note.cget("text")
    assert window.button.cget("state") == "disabled"
    window.fields[0][1].delete(4, "end")
    window.fields[2][0].delete(0, "end")
    window.fields[2][0].insert(0, "Epochs")  # by its label
    window._make()
    wait_for(app, lambda: window.runs)
    assert window.fields[2][2].cget("text") == "Epochs"
    window.add()
    wait_for(app, lambda: len(app.queue.view.rows) == 4)
    assert names(app)[-1] == "demo rank=8 epochs=2"


def test_a_second_window_shows_the_same_and_goes_on_after_a_reboot(app, make_app, wait_for, started):
    add(app, wait_for, "a")
    app.queue._next_start = math.inf  # as if it were closed
    turn_on(app, wait_for)  # by a window of an earlier boot, whose process is gone
    second = make_app(tab="queue")
    wait_for(second, lambda: second.queue.view.rows and started == ["queue_runner.py"])
    assert names(second) == ["a"]


def test_a_killed_process_of_the_queue_is_started_again_by_an_open_window(app, wait_for, started):
    add(app, wait_for, "a")
    turn_on(app, wait_for)
    app.queue._next_start = 0.0  # the window was open for a while
    wait_for(app, lambda: "was started again" in app.message.cget("text"))
    app.queue.look()
    wait_for(app, lambda: not app.queue._is_looking)
    assert started == ["queue_runner.py"]  # it may not have begun yet


def test_a_run_beside_the_queue_is_started_only_if_that_is_wanted(app, wait_for, monkeypatch):
    add(app, wait_for, "a")
    claim = ProcessLock(queue_of(app).entries()[0].claim_path)
    assert claim.take()
    app.queue.look()
    wait_for(app, lambda: app.queue.view.running)
    asked = []
    monkeypatch.setattr("modules.ui.RunControl.ask", lambda *arguments: asked.append(arguments[2]) or "Add to queue")
    app.start_run()
    assert "The queue is training a" in asked[0]
    assert app.bottom_bar.status.cget("text") == "The queue trains a: starting"
    assert opened(app, QueueEntryWindow)
    claim.release()
