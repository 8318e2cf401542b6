"""Everything can be reached with Tab and used with Space and Return, as in any other program.

CustomTkinter puts only entries in the Tab order, and takes the focus away from open menus.
"""

from __future__ import annotations

import tkinter

import customtkinter as ctk

from modules.ui.theme import Theme

RING = "focus_ring"
MENUS = (tkinter.Menu, ctk.CTkOptionMenu, ctk.CTkComboBox)


def install(root: ctk.CTk) -> None:
    """Serve all widgets of the window `root`, those of later windows too."""
    # Each CTkToplevel adds a handler of its own to all widgets again, which is never removed.
    _take_clicks(root)
    root.bind_class("Toplevel", "<Map>", lambda event: _take_clicks(root), add=True)
    # A widget can be used once its canvas is seen: this finds those of every tab and window, whoever makes them.
    root.bind_class("Canvas", "<Map>", _serve_owner, add=True)
    if root.tk.call("tk", "windowingsystem") == "x11":  # where Tk has it lead to the start of the line, as Emacs does
        root.event_delete("<<LineStart>>", "<Control-a>")
        root.event_add("<<SelectAll>>", "<Control-a>")


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
