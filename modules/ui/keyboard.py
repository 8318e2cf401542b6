"""Keyboard access: every widget can be reached with Tab and used with Space and Return, sliders with arrows, and a
window's shortcuts work wherever the focus is.

CustomTkinter puts only entries into the Tab order and takes the focus away from open menus. On X11, Tk's text widgets
have Emacs bindings: Ctrl+Y pastes and Ctrl+O opens a line.
"""

from __future__ import annotations

import time
import tkinter
from collections.abc import Callable, Mapping
from functools import partial

import customtkinter as ctk

from modules.ui.theme import Theme

RING = "focus_ring"
TYPED_INTO = ("Text", "Entry", "TEntry", "TCombobox", "Listbox")  # widget classes with key bindings of their own
DOUBLE_CLICK_SECONDS = 0.4
SLIDER_STEPS = 20  # that arrows take from one end of a slider to the other, if it has no steps of its own
MARK = "✓ "  # before the current value in a menu
MENUS = (tkinter.Menu, ctk.CTkOptionMenu, ctk.CTkComboBox)


def install(root: ctk.CTk) -> None:
    """Set up all widgets of the window `root`, including those of later windows."""
    # Each CTkToplevel adds another click handler to all widgets, which is never removed.
    _take_clicks(root)
    ctk.CTkOptionMenu._open_dropdown_menu = _open_marked
    root.bind_class("Toplevel", "<Map>", lambda event: _take_clicks(root), add=True)
    # Every CustomTkinter widget has a canvas: when that is mapped, the widget is set up.
    root.bind_class("Canvas", "<Map>", _serve_owner, add=True)
    if root.tk.call("tk", "windowingsystem") == "x11":  # where Ctrl+A goes to the start of the line, as in Emacs
        mark_all = _with_caps_lock("<Control-a>")
        root.event_delete("<<LineStart>>", *mark_all)
        root.event_add("<<SelectAll>>", *mark_all)


def bind_keys(window: tkinter.Tk | tkinter.Toplevel, keys: Mapping[str, Callable[[], object]]) -> None:
    """Bind shortcuts in a window, with or without Caps Lock, replacing the bindings of text widgets. keys: such as
    "<Control-s>" -> its action."""
    actions = {sequence: action for key, action in keys.items() for sequence in _with_caps_lock(key)}
    for sequence, action in actions.items():
        for kind in TYPED_INTO:  # overrides less specific bindings of the widget class
            window.bind_class(kind, sequence, "# nothing")
        window.bind(sequence, partial(_on_key, action))


def press(widget: tkinter.Misc) -> None:
    """Do what a click on the widget does; nothing if it is disabled or not clickable."""
    if widget.cget("state") == "disabled":
        return
    if isinstance(widget, ctk.CTkOptionMenu):
        widget._open_dropdown_menu()
        if widget.get() in widget.cget("values"):
            widget._dropdown_menu.activate(widget.cget("values").index(widget.get()))
    elif isinstance(widget, (ctk.CTkSwitch, ctk.CTkCheckBox)):
        widget.toggle()
    elif isinstance(widget, (ctk.CTkButton, ctk.CTkRadioButton)):
        widget.invoke()


def focus_instead(widget: tkinter.Misc, other: tkinter.Misc) -> None:
    """A click on the widget, such as the text of a button, focuses another one."""
    widget.focused_instead = other  # type: ignore[attr-defined] # our own attribute


def hold_keys(widget: tkinter.Misc, is_held: bool) -> None:
    """Ignore Space and Return in a widget, as from `Field.focus_widget`, or no more do: who has just been led to it may
    still be typing. The mouse works."""
    widget.holds_keys = is_held  # type: ignore[attr-defined] # our own attribute


def pressed_once(command: Callable[[], object]) -> Callable[[], None]:
    """Wrap `command` so that a double click runs it once, for a button that both starts and cancels."""
    pressed = float("-inf")

    def press_once() -> None:
        nonlocal pressed
        before, pressed = pressed, time.monotonic()
        if pressed - before >= DOUBLE_CLICK_SECONDS:
            command()

    return press_once


def _with_caps_lock(key: str) -> list[str]:
    """Tk's names of a key with and without Caps Lock, which changes the letter's case, depending on Tk's version and
    system even with Shift: Ctrl+Z and Ctrl+Shift+Z differ only in that."""
    held, _, letter = key[1:-1].rpartition("-")
    if len(letter) > 1:  # a named key, such as Tab
        return [key]
    return [key, f"<Lock-{held}-{letter.upper()}>", f"<Lock-{held}-{letter.lower()}>"]


def _do(action: Callable[[], object]) -> str:
    action()
    return "break"


def _on_key(action: Callable[[], object], event: tkinter.Event) -> str:
    return _do(action)


def _take_clicks(root: ctk.CTk) -> None:
    root.unbind_all("<Button-1>")
    root.bind_all("<Button-1>", _focus_clicked)


def _focus_clicked(event: tkinter.Event) -> None:
    """Move the focus to the clicked widget, but not to a menu, where it must stay where it is."""
    widget = getattr(event.widget, "focused_instead", event.widget)
    if isinstance(widget, (str, *MENUS)) or isinstance(widget.master, MENUS):
        return
    if isinstance(widget, tkinter.Canvas):
        # no focus ring after a click; the attribute is our own
        widget.clicked = widget is not widget.focus_get()  # type: ignore[attr-defined]
        widget.delete(RING)
    widget.focus_set()


def _serve_owner(event: tkinter.Event) -> None:
    canvas = event.widget
    owner = getattr(canvas, "master", None)
    pressable = (ctk.CTkButton, ctk.CTkSwitch, ctk.CTkCheckBox, ctk.CTkRadioButton, ctk.CTkOptionMenu, ctk.CTkSlider)
    if not isinstance(owner, pressable) or owner._canvas is not canvas or hasattr(canvas, "clicked"):
        return
    canvas.clicked = False
    if canvas.cget("takefocus") == "":  # else it is known already whether the Tab key stops here
        canvas.configure(takefocus=1)
    canvas.bind("<FocusIn>", lambda event: _draw_ring(canvas), add=True)
    canvas.bind("<FocusOut>", lambda event: canvas.delete(RING), add=True)
    canvas.bind("<Configure>", lambda event: _fit_ring(canvas), add=True)
    if isinstance(owner, ctk.CTkSlider):
        for key, step in (("<Left>", -1), ("<Down>", -1), ("<Right>", 1), ("<Up>", 1)):
            canvas.bind(key, partial(_on_slider_key, owner, step))
        return
    keys = ["<space>", "<Return>", "<KP_Enter>"]
    if isinstance(owner, ctk.CTkOptionMenu):
        keys.append("<Down>")
    for key in keys:
        canvas.bind(key, lambda event: None if getattr(canvas, "holds_keys", False) else press(owner))


def _on_slider_key(slider: ctk.CTkSlider, step: int, event: tkinter.Event) -> str:
    low, high, num_steps = slider.cget("from_"), slider.cget("to"), slider.cget("number_of_steps")
    if slider.cget("state") != "disabled":
        change = step * (high - low) / (num_steps or SLIDER_STEPS)
        slider.set(min(max(low, slider.get() + change), high))
        if slider.cget("command") is not None:
            slider.cget("command")(slider.get())
    return "break"


def _open_marked(widget: ctk.CTkOptionMenu) -> None:
    """Open the menu with a mark at the current value."""
    menu, current = widget._dropdown_menu, widget.get()
    width = {text: int(menu.tk.call("font", "measure", menu.cget("font"), text)) for text in (MARK, " ")}
    space = " " * round(width[MARK] / max(1, width[" "]))
    for number, value in enumerate(widget.cget("values")):
        menu.entryconfigure(number, label=f" {MARK if value == current else space}{value}  ")
    _open_plain(widget)


_open_plain = ctk.CTkOptionMenu._open_dropdown_menu


def _draw_ring(canvas: tkinter.Canvas) -> None:
    canvas.delete(RING)
    if getattr(canvas, "clicked", False):
        canvas.clicked = False  # type: ignore[attr-defined]
        return
    colour = Theme.focus[ctk.get_appearance_mode() == "Dark"]
    canvas.create_rectangle(0, 0, 0, 0, outline=colour, width=2, tags=RING)
    _fit_ring(canvas)


def _fit_ring(canvas: tkinter.Canvas) -> None:
    """Also when the size changes: a window's first focus comes before its layout."""
    canvas.coords(RING, 1, 1, canvas.winfo_width() - 2, canvas.winfo_height() - 2)
