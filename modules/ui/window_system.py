"""What differs between the window systems that Tk draws on: X11, Windows and Aqua, that of macOS."""

from __future__ import annotations

import tkinter
from collections.abc import Callable


def bind_menu(widget: tkinter.Misc, open_menu: Callable[[tkinter.Event], object]) -> None:
    """Have a right click on the widget open its menu; on macOS a click with Control, too."""
    sequences = ["<Button-3>"]
    if _system_of(widget) == "aqua":  # there the right button is 2 before Tk 9
        sequences += ["<Button-2>", "<Control-Button-1>"]
    for sequence in sequences:
        widget.bind(sequence, open_menu, add="+")


def wheel_notches(event: tkinter.Event) -> float:
    """How far the wheel was turned away from the person, in notches, by a <MouseWheel> event."""
    is_in_lines = _system_of(event.widget) == "aqua" and tkinter.TkVersion < 9
    return event.delta if is_in_lines else event.delta / 120


def on_screens(widget: tkinter.Misc, x: int, y: int, size: tuple[int, int]) -> tuple[int, int]:
    """The place nearest to x, y at which a window of that size is seen whole, on any of the screens."""
    # The virtual root has all of them, where what Tk calls the screen is on Windows the first one alone.
    x = max(widget.winfo_vrootx(), min(x, widget.winfo_vrootx() + widget.winfo_vrootwidth() - size[0]))
    y = max(widget.winfo_vrooty(), min(y, widget.winfo_vrooty() + widget.winfo_vrootheight() - size[1]))
    return x, y


def close_on_quit(window: tkinter.Tk, close: Callable[[], object]) -> None:
    """Have Cmd-Q and Quit in the menu of macOS do what the cross in the title bar does: by themselves they end Tk."""
    if _system_of(window) == "aqua":
        window.createcommand("tk::mac::Quit", close)


def _system_of(widget: tkinter.Misc) -> str:
    return widget.tk.call("tk", "windowingsystem")
