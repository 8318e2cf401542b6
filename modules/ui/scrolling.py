"""Scrolling a page so that a widget on it is seen, and scrollbars that are seen only where there is something to
scroll."""

from __future__ import annotations

import tkinter

import customtkinter as ctk


def scroll_to(widget: tkinter.Misc, margin: int = 40) -> None:
    """Scroll the scrollable frame around `widget` so far that it is seen; without one there is nothing to do."""
    frame = widget
    while frame is not None and not isinstance(frame, ctk.CTkScrollableFrame):
        frame = frame.master
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
    canvas.yview_moveto(max(0, top - view / 3) / height)


def make_scrollbar(parent: tkinter.Misc, widget: tkinter.XView | tkinter.YView, row: int, column: int) -> None:
    """A vertical scrollbar for `widget` in the parent's grid, which is away while all of the widget is in sight."""
    # Of no height: when it goes and comes, the rows must stay as they are, or it would have to go and come again.
    scrollbar = ctk.CTkScrollbar(parent, height=10, command=widget.yview)
    scrollbar.grid(row=row, column=column, sticky="ns")
    widget.configure(yscrollcommand=quiet(scrollbar))


def quiet_page(page: ctk.CTkScrollableFrame) -> None:
    """Take the page's scrollbar away while all of the page is in sight."""
    page._parent_canvas.configure(yscrollcommand=quiet(page._scrollbar))


def quiet(scrollbar: ctk.CTkScrollbar):
    """What sets the scrollbar, and hides it where there is nothing to scroll.

    Its room stays: a page that grew wider then could need it again, and so on.
    """

    def show(first: str, last: str) -> None:
        is_needed = float(first) > 0 or float(last) < 1
        if is_needed != bool(scrollbar.grid_info()):
            if is_needed:
                scrollbar.grid()
            else:
                _keep_room(scrollbar)
                scrollbar.grid_remove()
        if scrollbar.get() != (float(first), float(last)):  # drawing one takes some ms
            scrollbar.set(float(first), float(last))

    return show


def _keep_room(scrollbar: ctk.CTkScrollbar) -> None:
    place = scrollbar.grid_info()
    beside = place["padx"] if isinstance(place["padx"], tuple) else (place["padx"], place["padx"])
    width = scrollbar._apply_widget_scaling(scrollbar.cget("width"))  # what it asks for is not known before it is seen
    scrollbar.master.grid_columnconfigure(place["column"], minsize=round(width) + sum(beside))
