"""Differences between Tk's window systems: X11, Windows and Aqua (macOS)."""

from __future__ import annotations

import tkinter
from collections.abc import Callable


def bind_menu(widget: tkinter.Misc, open_menu: Callable[[tkinter.Event], object]) -> None:
    """Open a menu by right-clicking a widget, on macOS also by Control-clicking it."""
    sequences = ["<Button-3>"]
    if _system_of(widget) == "aqua":  # there the right button has number 2 before Tk 9
        sequences += ["<Button-2>", "<Control-Button-1>"]
    for sequence in sequences:
        widget.bind(sequence, open_menu, add="+")


def wheel_events(widget: tkinter.Misc) -> tuple[str, ...]:
    """The events of the mouse wheel: on X11 before Tk 9 it is two buttons."""
    is_buttons = _system_of(widget) == "x11" and tkinter.TkVersion < 9
    return ("<Button-4>", "<Button-5>") if is_buttons else ("<MouseWheel>",)


def wheel_notches(event: tkinter.Event) -> float:
    """How far the wheel was turned away from the user, in notches, from a <MouseWheel> event."""
    is_in_lines = _system_of(event.widget) == "aqua" and tkinter.TkVersion < 9
    return event.delta if is_in_lines else event.delta / 120


def on_screens(widget: tkinter.Misc, x: int, y: int, size: tuple[int, int]) -> tuple[int, int]:
    """The position nearest to x, y at which a window of this size is entirely visible on the screens."""
    # The virtual root covers all screens; on Windows, Tk's "screen" is only the first one.
    x = max(widget.winfo_vrootx(), min(x, widget.winfo_vrootx() + widget.winfo_vrootwidth() - size[0]))
    y = max(widget.winfo_vrooty(), min(y, widget.winfo_vrooty() + widget.winfo_vrootheight() - size[1]))
    return x, y


def close_on_quit(window: tkinter.Tk, close: Callable[[], object]) -> None:
    """Make Cmd-Q and Quit in the menu of macOS close the window; by default they end Tk."""
    if _system_of(window) == "aqua":
        window.createcommand("tk::mac::Quit", close)


def _system_of(widget: tkinter.Misc) -> str:
    return widget.tk.call("tk", "windowingsystem")
