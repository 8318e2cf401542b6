"""Scroll to widgets, and hide scrollbars that are not needed."""

from __future__ import annotations

import tkinter
from collections.abc import Iterator
from tkinter import ttk
from typing import TYPE_CHECKING

import customtkinter as ctk

if TYPE_CHECKING:
    from modules.ui.App import App


def scroll_to(widget: tkinter.Misc, margin: int = 40) -> None:
    """Scroll the scrollable frame around `widget`, if there is one, so that the widget is visible."""
    frame = page_around(widget)
    if frame is None:
        return
    frame.update_idletasks()
    canvas = frame._parent_canvas
    height, view = frame.winfo_height(), canvas.winfo_height()
    if height <= view:
        return
    top = widget.winfo_rooty() - frame.winfo_rooty()
    first = canvas.canvasy(0)
    if first + margin <= top <= first + view - widget.winfo_height() - margin:
        return
    above = min(view / 3, max(0, view - widget.winfo_height()))  # a high one begins at the upper edge
    canvas.yview_moveto(max(0, top - above) / height)


def page_around(widget: tkinter.Misc) -> ctk.CTkScrollableFrame | None:
    """The scrollable frame that a widget is on, or is itself."""
    frame: tkinter.Misc | None = widget
    while frame is not None and not isinstance(frame, ctk.CTkScrollableFrame):
        frame = frame.master
    return frame


def bring_into_sight(app: App, widget: tkinter.Misc) -> None:
    """Scroll to a widget, and again once everything above it is built on a tab that has just been opened."""
    scroll_to(widget)
    app.in_slices(_scroll_again(widget))


def focus_in_sight(page: ctk.CTkScrollableFrame) -> tkinter.Misc | None:
    """The focused widget if it is visible on the page, else None."""
    widget = page.winfo_toplevel().focus_lastfor()
    if widget is None or not str(widget).startswith(f"{page}."):
        return None
    canvas = page._parent_canvas
    top = widget.winfo_rooty() - canvas.winfo_rooty()
    return widget if 0 <= top <= canvas.winfo_height() - widget.winfo_height() else None


def make_scrollbar(
    parent: tkinter.Misc, widget: tkinter.Canvas | ttk.Treeview | tkinter.Text, row: int, column: int
) -> None:
    """Add a vertical scrollbar for `widget` to the parent's grid, hidden while it is not needed."""
    # With minimal height, so that showing and hiding it never changes the rows, which would toggle it again.
    scrollbar = ctk.CTkScrollbar(parent, height=10, command=widget.yview)
    scrollbar.grid(row=row, column=column, sticky="ns")
    widget.configure(yscrollcommand=quiet(scrollbar))


def quiet(scrollbar: ctk.CTkScrollbar):
    """A scroll command that updates the scrollbar and hides it if there is nothing to scroll.

    Its space stays reserved: a page that becomes wider could need the scrollbar again, and so on.
    """

    def show(first: str, last: str) -> None:
        is_needed = float(first) > 0 or float(last) < 1
        if is_needed != bool(scrollbar.grid_info()):
            if is_needed:
                scrollbar.grid()
            else:
                _keep_room(scrollbar)
                scrollbar.grid_remove()
        if scrollbar.get() != (float(first), float(last)):  # drawing takes a few ms
            scrollbar.set(float(first), float(last))

    return show


def _scroll_again(widget: tkinter.Misc) -> Iterator[None]:
    if widget.winfo_exists():
        scroll_to(widget)
    yield


def _keep_room(scrollbar: ctk.CTkScrollbar) -> None:
    place = scrollbar.grid_info()
    beside = place["padx"] if isinstance(place["padx"], tuple) else (place["padx"], place["padx"])
    width = scrollbar._apply_widget_scaling(scrollbar.cget("width"))  # its requested width is unknown until shown
    scrollbar.master.grid_columnconfigure(place["column"], minsize=round(width) + sum(beside))
