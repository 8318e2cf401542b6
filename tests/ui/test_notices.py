"""Messages over the page."""

import pytest

from modules.config.files import save_config
from modules.session.RunFolder import RunFolder
from modules.ui.cards.ProgressCard import ProgressCard
from modules.ui.models.RunState import LogLine, RunState
from modules.ui.widgets.form import find_field
from modules.ui.windows.CrashReportWindow import CrashReportWindow


@pytest.fixture
def app(shared_app):
    return shared_app


def box_of(widget) -> tuple[int, int, int, int]:
    x, y = widget.winfo_rootx(), widget.winfo_rooty()
    return x, y, x + widget.winfo_width(), y + widget.winfo_height()


def overlap(one, other) -> bool:
    (left, top, right, bottom), (x, y, far, low) = box_of(one), box_of(other)
    return left < far and x < right and top < low and y < bottom


@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_a_message_moves_nothing_and_covers_no_button_of_the_bar(make_app, settle, scale):
    app = make_app(tab="tools")
    app.theme.set_scale(scale)
    settle(app)
    before = box_of(app.content), box_of(app.bottom_bar)
    app.show_message("word " * 60, "error")
    settle(app)
    assert (box_of(app.content), box_of(app.bottom_bar)) == before
    assert overlap(app.banner, app.content)
    assert not overlap(app.banner, app.bottom_bar)
    assert app.banner.winfo_height() >= app.banner.winfo_reqheight()


def test_a_later_message_takes_no_earlier_error_away_and_none_is_said_twice(app):
    for text in ("broken", "broken", "saved"):
        app.show_message(text, "info" if text == "saved" else "error")
    assert app.banner.texts == ["broken", "saved"]
    for text in ("one", "two"):
        app.show_message(text, "warning")
    assert app.banner.texts == ["saved", "one", "two"]
    app.banner.close("one")
    assert app.banner.texts == ["saved", "two"]


def test_a_message_is_closed_with_the_button_beside_it_and_information_goes_by_itself(app, wait_for, monkeypatch):
    monkeypatch.setattr("modules.ui.widgets.Notices.INFO_MS", 1)
    app.show_message("broken", "error")
    app.show_message("saved")
    wait_for(app, lambda: app.banner.texts == ["broken"])
    label, close = app.banner._rows[-1]
    assert label.cget("text") == "broken"
    close.invoke()
    assert not app.banner.winfo_manager()


def test_a_message_is_not_over_the_field_in_use(app, settle):
    tab = app.open_tab("training")
    settle(app)
    app.show_message("word " * 60, "error")
    settle(app)
    bottom = app.banner.winfo_rooty()
    entries = [find_field(tab, path).focus_widget() for path in ("epochs", "optimizer.learning_rate", "ema.decay")]
    page = tab.page._parent_canvas
    for entry in (one for one in entries if one.winfo_ismapped()):
        page.yview_moveto(0)
        app.update()
        below = entry.winfo_rooty() - page.winfo_rooty() - page.winfo_height() + entry.winfo_height()
        page.yview_moveto(max(0, below) / tab.page.winfo_height())
        app.update()
        entry.focus_force()
        settle(app)
        assert not overlap(app.banner, entry)
    app.tab_bar.focus_on("training")
    settle(app)
    assert app.banner.winfo_rooty() == bottom


def test_a_message_goes_when_it_no_longer_holds(app, wait_for):
    holds = {"one": True, "two": True}
    for text in holds:
        app.show_message(text, "error", lambda text=text: holds[text])
    app.show_message("three", "error")
    holds["one"] = False
    wait_for(app, lambda: app.banner.texts == ["two", "three"])


def test_a_command_that_could_not_be_copied_is_no_longer_told_once_there_is_one(app, settle, wait_for):
    app.settings.set("epochs", "many")
    tab = app.open_tab("multi-GPU")
    settle(app)
    tab.command_card.copy()
    assert "no command" in app.banner.texts[-1]
    app.settings.set("epochs", "3")
    wait_for(app, lambda: not app.banner.texts)


def test_settings_that_could_not_be_saved_are_no_longer_told_once_they_can_be(app, tmp_path, wait_for):
    app.settings.set("epochs", "many")
    app.top_bar._save_to(tmp_path / "settings.yaml")
    assert "can't be saved" in app.banner.texts[-1]
    app.settings.set("epochs", "3")
    wait_for(app, lambda: not app.banner.texts)


def failed_run(app, folder, is_seen: bool) -> None:
    """Follow a run until it fails, or one that had failed before."""
    run = RunFolder(folder)
    run.create()
    save_config(app.settings.in_effect, run.config_path)
    if is_seen:
        app._run_changed(RunState(folder=run.path, is_running=True))
    app._run_changed(RunState(folder=run.path, exit={"status": "failed", "text": "Disk on fire."}))


def test_a_failure_is_told_as_long_as_its_report_is_open(app, tmp_path, wait_for):
    failed_run(app, tmp_path / "run", is_seen=True)
    assert app.banner.texts == ["The run failed: Disk on fire."]
    report = next(child for child in app.winfo_children() if isinstance(child, CrashReportWindow))
    report.destroy()
    wait_for(app, lambda: not app.banner.texts)


def test_a_failure_of_before_is_told_until_the_tab_with_its_report_is_open(app, tmp_path, wait_for):
    failed_run(app, tmp_path / "run", is_seen=False)
    assert "Its report is on the Tools tab" in app.banner.texts[-1]
    app.open_tab("tools")
    wait_for(app, lambda: not app.banner.texts)


def test_a_run_that_waits_for_space_says_where_and_how_much_as_long_as_it_waits(app, tmp_path, wait_for):
    def waits(text: str) -> None:
        app.run.state = RunState(folder=tmp_path, is_running=True, is_stopping=True, waits_for=text)
        app._run_changed(app.run.state)

    for minutes in (10, 10, 9):
        text = f"Waiting up to {minutes} min for 4.2 GB in /data/run/models; stop the run to stop waiting"
        waits(text)
    wait_for(app, lambda: app.banner.texts == [f"{text}."])
    app.bottom_bar.show_run(app.run.state)
    assert text in app.bottom_bar.status.cget("text")
    waits("")
    wait_for(app, lambda: not app.banner.texts)


def test_the_warnings_of_a_run_are_told_with_its_progress(app, settle):
    card = ProgressCard(app, app)
    card.show(RunState())
    assert not card.warning.winfo_manager()
    warnings = [LogLine(1.0, 0, "warning", text) for text in ("2 images can't be read", "No space left on device")]
    card.show(RunState(warnings=warnings))
    assert card.warning.cget("text") == "No space left on device\n1 earlier warning in the log."
    assert card.warning.winfo_manager()
