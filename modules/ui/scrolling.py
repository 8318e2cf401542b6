"""Scrolling a page so that a widget on it is seen."""

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
