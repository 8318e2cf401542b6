"""The scrollable area of a tab or window."""

from __future__ import annotations

import tkinter

import customtkinter as ctk

from modules.ui.widgets.scrolling import quiet


class Page(ctk.CTkScrollableFrame):
    """A CTkScrollableFrame whose content always stays within reach.

    The original measures its content when that is resized. Tk resizes only what is in sight: content that becomes so
    short that it ends above the visible part is never measured again, and the page stays empty. It also fails at the
    wheel over windows that Tk itself creates, such as its file dialog. The scrollbar is hidden while it is not needed.
    """

    def __init__(self, parent: tkinter.Misc, **options):
        super().__init__(parent, fg_color="transparent", **options)
        self._measuring: str | None = None
        self._parent_canvas.configure(yscrollcommand=quiet(self._scrollbar))
        self.bind("<Unmap>", lambda event: self._measure_soon(), add="+")  # it has left the visible part
        for event_name in ("<Map>", "<Configure>"):
            self._parent_canvas.bind(event_name, lambda event: self._measure_soon(), add="+")

    def destroy(self) -> None:
        if self._measuring is not None:
            self.after_cancel(self._measuring)
        super().destroy()

    def _measure_soon(self) -> None:
        if self._measuring is None:
            self._measuring = self.after_idle(self._measure)

    def _measure(self) -> None:
        self._measuring = None
        area = self._parent_canvas.bbox("all")
        if area is not None and str(self._parent_canvas.cget("scrollregion")) != " ".join(map(str, area)):
            self._parent_canvas.configure(scrollregion=area)

    def _check_if_valid_scroll(self, widget: tkinter.Misc | str) -> bool:
        """Whether the wheel over a widget scrolls this page. widget: the name of one that Tk itself created."""
        return not isinstance(widget, str) and super()._check_if_valid_scroll(widget)
