"""Everything can be reached with Tab and used with Space and Return, as in any other program, and the keys of a window
do what they are for wherever it has the focus.

CustomTkinter puts only entries in the Tab order, and takes the focus away from open menus. On X11 Tk edits texts with
the keys of Emacs: Ctrl+Y pastes, and Ctrl+O begins a line.
"""

from __future__ import annotations

import time
import tkinter
from collections.abc import Callable, Mapping

import customtkinter as ctk

from modules.ui.theme import Theme

RING = "focus_ring"
TYPED_INTO = ("Text", "Entry", "TEntry", "TCombobox", "Listbox")  # classes of widgets with keys of their own
DOUBLE_CLICK_SECONDS = 0.4
MENUS = (tkinter.Menu, ctk.CTkOptionMenu, ctk.CTkComboBox)


def install(root: ctk.CTk) -> None:
    """Serve all widgets of the window `root`, those of later windows too."""
    # Each CTkToplevel adds a handler of its own to all widgets again, which is never removed.
    _take_clicks(root)
    root.bind_class("Toplevel", "<Map>", lambda event: _take_clicks(root), add=True)
    # A widget can be used once its canvas is seen: this finds those of every tab and window, whoever makes them.
    root.bind_class("Canvas", "<Map>", _serve_owner, add=True)
    if root.tk.call("tk", "windowingsystem") == "x11":  # where Tk has it lead to the start of the line, as Emacs does
        mark_all = _with_caps_lock("<Control-a>")
        root.event_delete("<<LineStart>>", *mark_all)
        root.event_add("<<SelectAll>>", *mark_all)


def bind_keys(window: tkinter.Tk | tkinter.Toplevel, keys: Mapping[str, Callable[[], object]]) -> None:
    """Have keys pressed in a window do what they are for, and no more than that in what is typed into; with Caps Lock
    too. keys: such as "<Control-s>" -> what it does."""
    actions = {sequence: action for key, action in keys.items() for sequence in _with_caps_lock(key)}
    for sequence, action in actions.items():
        for kind in TYPED_INTO:  # what else the key means there is the less specific match, and is passed over
            window.bind_class(kind, sequence, "# nothing")
        window.bind(sequence, lambda event, action=action: _do(action))


def press(widget: tkinter.Misc) -> None:
    """Do what a click on the widget does. A widget that can't be pressed does nothing."""
    if widget.cget("state") == "disabled":
        return
    if isinstance(widget, ctk.CTkOptionMenu):
        widget._open_dropdown_menu()
    elif isinstance(widget, (ctk.CTkSwitch, ctk.CTkCheckBox)):
        widget.toggle()
    elif isinstance(widget, (ctk.CTkButton, ctk.CTkRadioButton)):
        widget.invoke()


def pressed_once(command: Callable[[], object]) -> Callable[[], None]:
    """`command` for a button that is not to be pressed twice by a double click, such as one that starts and cancels."""
    pressed = float("-inf")

    def press_once() -> None:
        nonlocal pressed
        before, pressed = pressed, time.monotonic()
        if pressed - before >= DOUBLE_CLICK_SECONDS:
            command()

    return press_once


def _with_caps_lock(key: str) -> list[str]:
    """How Tk calls a key without and with Caps Lock, which changes the case of its letter, by Tk's version and system
    also where Shift is held: Ctrl+Z and Ctrl+Shift+Z differ by that only."""
    held, _, letter = key[1:-1].rpartition("-")
    if len(letter) > 1:  # it has a name, such as Tab
        return [key]
    return [key, f"<Lock-{held}-{letter.upper()}>", f"<Lock-{held}-{letter.lower()}>"]


def _do(action: Callable[[], object]) -> str:
    action()
    return "break"


def _take_clicks(root: ctk.CTk) -> None:
    root.unbind_all("<Button-1>")
    root.bind_all("<Button-1>", _focus_clicked)


def _focus_clicked(event: tkinter.Event) -> None:
    """A click outside of an entry takes the focus from it; in a menu it must stay where the keys go."""
    widget = event.widget
    if isinstance(widget, (str, *MENUS)) or isinstance(widget.master, MENUS):
        return
    if isinstance(widget, tkinter.Canvas):
        widget.clicked = True  # no ring: the person sees where the pointer is
    widget.focus_set()


def _serve_owner(event: tkinter.Event) -> None:
    canvas = event.widget
    owner = getattr(canvas, "master", None)
    pressable = (ctk.CTkButton, ctk.CTkSwitch, ctk.CTkCheckBox, ctk.CTkRadioButton, ctk.CTkOptionMenu)
    if not isinstance(owner, pressable) or owner._canvas is not canvas or canvas.cget("takefocus") == "1":
        return
    canvas.configure(takefocus=1)
    keys = ["<space>", "<Return>", "<KP_Enter>"]
    if isinstance(owner, ctk.CTkOptionMenu):
        keys.append("<Down>")
    for key in keys:
        canvas.bind(key, lambda event: press(owner))
    canvas.bind("<FocusIn>", lambda event: _draw_ring(canvas), add=True)
    canvas.bind("<FocusOut>", lambda event: canvas.delete(RING), add=True)


def _draw_ring(canvas: tkinter.Canvas) -> None:
    canvas.delete(RING)
    if getattr(canvas, "clicked", False):
        canvas.clicked = False
        return
    colour = Theme.focus[ctk.get_appearance_mode() == "Dark"]
    canvas.create_rectangle(
        1, 1, canvas.winfo_width() - 2, canvas.winfo_height() - 2, outline=colour, width=2, tags=RING
    )
