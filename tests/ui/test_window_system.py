"""Differences of Tk on Windows and macOS, with fake widgets, as all other tests run on X11."""

from __future__ import annotations

import tkinter
from types import SimpleNamespace

import pytest

from modules.ui.window_system import bind_menu, close_on_quit, on_screens, wheel_notches

SYSTEMS = ("x11", "win32", "aqua")


class Widget:
    def __init__(self, system: str, screens: tuple[int, int, int, int] = (0, 0, 1920, 1080)):
        self.tk = SimpleNamespace(call=lambda *words: system)
        self.bound: list[str] = []
        self.commands: dict[str, object] = {}
        self.winfo_vrootx, self.winfo_vrooty, self.winfo_vrootwidth, self.winfo_vrootheight = (
            (lambda value=value: value) for value in screens
        )

    def bind(self, sequence: str, command: object, add: str) -> None:
        self.bound.append(sequence)

    def createcommand(self, name: str, command: object) -> None:
        self.commands[name] = command


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_menu_opens_with_the_right_button_of_the_system(system):
    widget = Widget(system)
    bind_menu(widget, print)
    assert "<Button-3>" in widget.bound
    assert ("<Button-2>" in widget.bound) == (system == "aqua")  # elsewhere it is the middle button, which pastes


@pytest.mark.parametrize(
    ("system", "tk", "delta", "notches"),
    [
        ("win32", 8.6, 120, 1),
        ("win32", 8.6, -30, -0.25),
        ("aqua", 8.6, 1, 1),
        ("aqua", 8.6, -3, -3),
        ("aqua", 9.0, 120, 1),
    ],
)
def test_a_notch_of_the_wheel_is_one_on_every_system(system, tk, delta, notches, monkeypatch):
    monkeypatch.setattr(tkinter, "TkVersion", tk)
    assert wheel_notches(SimpleNamespace(widget=Widget(system), delta=delta)) == notches


@pytest.mark.parametrize("system", SYSTEMS)
def test_quitting_on_macos_asks_as_the_cross_does(system):
    widget = Widget(system)
    close_on_quit(widget, print)
    assert widget.commands == ({"tk::mac::Quit": print} if system == "aqua" else {})


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ((2500, 300), (2500, 300)),  # on the second screen, to the right of the first
        ((-1800, 300), (-1800, 300)),  # on the third screen, to the left of it
        ((3800, 1000), (3440, 780)),
        ((-3000, -50), (-1920, 0)),
    ],
)
def test_a_question_stays_on_the_screen_of_its_window(place, expected):
    three_screens = Widget("win32", (-1920, 0, 3 * 1920, 1080))
    assert on_screens(three_screens, *place, (400, 300)) == expected


def test_a_window_larger_than_the_screen_begins_where_that_begins():
    assert on_screens(Widget("x11", (0, 0, 800, 600)), 50, 50, (1000, 700)) == (0, 0)
