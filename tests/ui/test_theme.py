"""Readable colours, and scaling."""

from tkinter import ttk
from types import SimpleNamespace

import customtkinter as ctk
import pytest

from modules.ui.theme import Theme

SURFACES = ("page", "bar", "card", "field", "code", "control", "control_hover")
TEXTS = ("text", "muted", "accent", "error", "warning", "success")
BUTTONS = ("start", "start_hover", "stop", "stop_hover", "selected", "selected_hover")


def contrast(one: str, other: str) -> float:
    """Ratio of luminances, 1 to 21. Source: WCAG 2.2, 'contrast ratio' and 'relative luminance'."""

    def luminance(colour: str) -> float:
        parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("surface", SURFACES)
def test_text_can_be_read_on_every_surface(surface, text, mode):
    if surface.startswith("control") and text not in ("text", "muted"):
        pytest.skip("only plain text stands on buttons")
    assert contrast(getattr(Theme, surface)[mode], getattr(Theme, text)[mode]) >= 4.5


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("button", BUTTONS)
def test_text_can_be_read_on_coloured_buttons(button, mode):
    assert contrast(getattr(Theme, button)[mode], Theme.on_accent[mode]) >= 4.5


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_borders_and_the_focus_can_be_seen(mode):
    for surface in ("card", "bar", "page", "field"):
        for edge in ("border", "focus"):
            assert contrast(getattr(Theme, surface)[mode], getattr(Theme, edge)[mode]) >= 3


def test_stock_widgets_take_colours_that_can_be_read(app):
    theme = ctk.ThemeManager.theme
    for widget in ("CTkButton", "CTkOptionMenu", "CTkEntry", "CTkTextbox", "DropdownMenu"):
        for mode in (0, 1):
            assert contrast(theme[widget]["fg_color"][mode], theme[widget]["text_color"][mode]) >= 4.5, widget
    segmented = theme["CTkSegmentedButton"]
    for part in ("selected_color", "unselected_color"):
        for mode in (0, 1):
            assert contrast(segmented[part][mode], segmented["text_color"][mode]) >= 4.5, part


def test_the_scale_changes_lengths_fonts_and_what_was_asked_to_redraw(app):
    seen = []
    stop = app.theme.on_change(lambda: seen.append(app.theme.scaled(100)))
    app.theme.set_scale(1.5)
    assert (app.theme.scaled(100), app.theme.plain_font(10)[1]) == (150, -15)
    assert seen == [150]
    stop()
    app.theme.set_scale(1.0)
    assert seen == [150]


def test_the_scale_stays_within_its_limits(app):
    app.theme.set_scale(9)
    assert app.theme.scaled(100) == 200
    app.theme.set_scale(0.1)
    assert app.theme.scaled(100) == 80
    app.theme.set_scale(1.0)


def test_what_the_system_changes_is_drawn_anew_once(app, wait_for, monkeypatch):
    tracker, scaling = ctk.AppearanceModeTracker, ctk.ScalingTracker
    monkeypatch.setattr(tracker, "appearance_mode_set_by", tracker.appearance_mode_set_by)  # restored after the test
    monkeypatch.setattr("modules.ui.theme.sys", SimpleNamespace(platform="win32"))
    app.theme.set_appearance("light")
    app.theme.set_scale(1.0)
    app.update()
    seen = []
    app.theme.on_change(lambda: seen.append((app.theme.is_dark, app.theme.scaled(100))))
    monkeypatch.setattr(tracker, "detect_appearance_mode", lambda: 1)
    app.theme.set_appearance("system")
    tracker.update()  # CustomTkinter's check of the system, made every 30 ms
    wait_for(app, lambda: seen[-1:] == [(True, 100)])
    monkeypatch.setattr(tracker, "detect_appearance_mode", lambda: 0)  # changed by the user or the time of day
    tracker.update()
    wait_for(app, lambda: seen[-1:] == [(False, 100)])
    monkeypatch.setattr(scaling, "get_window_dpi_scaling", lambda window: 1.5)  # as on another screen
    scaling.check_dpi_scaling()
    wait_for(app, lambda: seen[-1:] == [(False, 150)])
    assert ttk.Style(app).lookup("Treeview", "rowheight") == app.theme.scaled(26)
    app.update()
    assert seen[-3:] == [(True, 100), (False, 100), (False, 150)]


def test_a_theme_ends_with_its_window(make_app):
    before = list(ctk.AppearanceModeTracker.callback_list)
    window = make_app(tab="tools")
    window.destroy()
    assert ctk.AppearanceModeTracker.callback_list == before


def test_a_font_that_is_missing_is_replaced(app, monkeypatch):
    monkeypatch.setattr(ctk.DrawEngine, "preferred_drawing_method", "font_shapes")  # restored after the test
    monkeypatch.setattr("tkinter.font.families", lambda root: ("Something else",))
    theme = Theme(app)
    theme.close()
    assert (theme.sans, theme.mono) == ("TkDefaultFont", "TkFixedFont")
    assert ctk.DrawEngine.preferred_drawing_method == "polygon_shapes"
