"""An entry that filters a list by name, and says how much of the list it leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import customtkinter as ctk

if TYPE_CHECKING:
    import tkinter

    from modules.ui.App import App

WIDTH = 220  # unscaled pixels


class NameFilter(ctk.CTkFrame):
    """on_change: called with the text whenever the user changes it. Escape clears it."""

    def __init__(self, parent: tkinter.Misc, app: App, on_change: Callable[[str], None]):
        super().__init__(parent, fg_color="transparent")
        self._on_change = on_change
        font = app.theme.font()
        self.entry = ctk.CTkEntry(self, width=WIDTH, height=28, font=font, placeholder_text="Filter by name")
        self.entry.grid(row=0, column=0)
        self._count = ctk.CTkLabel(self, text="", font=font, text_color=app.theme.muted)
        self._count.grid(row=0, column=1, padx=10)
        self.entry.bind("<KeyRelease>", lambda event: on_change(self.entry.get()))
        self.entry.bind("<Escape>", lambda event: self._drop())

    def clear(self) -> None:
        """Empty the entry, without a call of on_change."""
        self.entry.delete(0, "end")

    def show_count(self, shown: int, total: int) -> None:
        """Say how many of all are shown, if not all are."""
        self._count.configure(text="" if shown == total else f"{shown} of {total} shown")

    def _drop(self) -> None:
        self.clear()
        self._on_change("")
