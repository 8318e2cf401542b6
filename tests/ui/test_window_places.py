"""Where windows are: kept between starts and when they are scaled, and entirely on the screen."""

import json
import re
import tkinter
from types import SimpleNamespace

import pytest

from modules.ui.OpeningWindow import MIN_SIZE
from modules.ui.widgets.dialogs import TITLE_HEIGHT, open_window, place, position_of
from modules.ui.windows.HealthWindow import HealthWindow
from modules.ui.windows.MultiNodeWindow import MultiNodeWindow
from modules.ui.windows.ProblemsWindow import ProblemsWindow
from tests.support.pictures import write_pictures


def test_the_window_opens_where_it_was_left(make_app, tmp_path, settle):
    first = make_app(tmp_path)
    tkinter.Wm.wm_geometry(first, "900x600+37+41")
    settle(first)
    first.destroy()
    kept = json.loads((tmp_path / "window.json").read_text())["geometry"]
    assert re.fullmatch(r"\d+x\d+\+37\+41", kept)
    second = make_app(tmp_path)
    settle(second)
    assert position_of(second) == (37, 41)
    assert second.winfo_width() == pytest.approx(900, abs=2)


@pytest.mark.parametrize("geometry", ["900x600+5000+4000", "900x600+-3000+-50", "900x600+200+900", "99999x99999+20+20"])
def test_a_window_left_on_a_screen_that_is_gone_opens_on_this_one(make_app, tmp_path, settle, geometry):
    (tmp_path / "window.json").write_text(json.dumps({"scale": 1.0, "geometry": geometry}))
    app = make_app(tmp_path)
    settle(app)
    assert 0 <= app.winfo_rootx() <= app.winfo_screenwidth() - app.winfo_width()
    assert 0 <= app.winfo_rooty() <= app.winfo_screenheight() - app.winfo_height() - TITLE_HEIGHT


def test_the_position_is_found_where_the_window_manager_does_not_tell_it():
    def window(told: str, x: int, y: int):
        return SimpleNamespace(wm_geometry=lambda: told, winfo_rootx=lambda: x, winfo_rooty=lambda: y)

    assert position_of(window("900x600+260+70", 261, 91)) == (260, 70)
    assert position_of(window("900x600+-40+-3", -39, 21)) == (-40, -3)
    x, y = position_of(window("900x600+0+0", 260, 91))
    assert x == 260
    assert 91 - TITLE_HEIGHT <= y < 91


def test_another_scale_keeps_the_window_in_its_place_and_other_colours_do_not_touch_it(app, settle, monkeypatch):
    settle(app)
    moved, fitted = [], []
    fit = app._fit_to_screen
    monkeypatch.setattr("modules.ui.OpeningWindow.position_of", lambda window: (12, 34))
    monkeypatch.setattr("modules.ui.OpeningWindow.place", lambda window, *position: moved.append(position))
    monkeypatch.setattr(app, "_fit_to_screen", lambda size: fitted.append(size) or fit(size))
    app.theme.set_appearance("light" if app.theme.is_dark else "dark")
    settle(app)
    assert (moved, fitted) == ([], [])
    app.theme.set_scale(0.9)
    settle(app)
    assert moved == [(12, 34)]


def test_a_larger_scale_and_back_leaves_the_size_as_it_was(app, settle, wait_for):
    app.theme.set_scale(1.0)
    settle(app)
    size = app.winfo_width(), app.winfo_height()
    app.theme.set_scale(1.5)
    settle(app)
    wait_for(app, lambda: app.winfo_width() >= 1.5 * MIN_SIZE[0])
    app.theme.set_scale(1.0)
    wait_for(app, lambda: (app.winfo_width(), app.winfo_height()) == size)


def test_other_windows_stay_on_the_screen_at_a_larger_scale_and_get_their_size_back(
    app, make_app, settle, wait_for, tmp_path, show_dataset
):
    """CustomTkinter enlarges windows with the scale, also beyond the screen: those in sight, and those to be shown."""
    former = make_app()
    kept = open_window(former, ProblemsWindow)  # by a reference, though its application has ended
    former.destroy()
    settle(app)
    hidden = show_dataset(app, write_pictures(tmp_path / "cats", [(8, 8)]))
    in_sight = open_window(app, MultiNodeWindow)
    settle(app)
    sizes = [(window.winfo_width(), window.winfo_height()) for window in (hidden, in_sight)]
    hidden.hide()
    app.theme.set_scale(1.5 * app.theme.scaled(100) / 100)
    settle(app)
    hidden.show(0)
    settle(app)
    for window in (hidden, in_sight):
        assert window.winfo_rootx() + window.winfo_width() <= app.winfo_screenwidth(), window
        assert window.winfo_rooty() + window.winfo_height() <= app.winfo_screenheight() - TITLE_HEIGHT, window
        assert window.winfo_height() > 1.1 * sizes[window is in_sight][1], window  # larger, as far as there is room
    assert kept.tk is not app.tk
    app.theme.set_scale(app.theme.scaled(100) / 150)
    wait_for(app, lambda: [(window.winfo_width(), window.winfo_height()) for window in (hidden, in_sight)] == sizes)


def test_every_window_opens_with_its_lower_edge_on_the_screen(app, settle):
    place(app, 0, app.winfo_screenheight())
    settle(app)
    windows = [open_window(app, kind) for kind in (MultiNodeWindow, HealthWindow, ProblemsWindow)]
    tab = app.open_tab("dataset")
    settle(app)
    tab.edit(0)
    settle(app)
    for window in (*windows, tab._window, app):
        assert window.winfo_rooty() + window.winfo_height() <= app.winfo_screenheight() - TITLE_HEIGHT, window
