"""The problems of a list of parts, which has no field of its own to show them at."""

from __future__ import annotations

import tkinter
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.ui.theme import Theme
from modules.ui.widgets.fitting import wrap_to

if TYPE_CHECKING:
    from modules.ui.App import App


class ProblemNote(ctk.CTkLabel):
    """A text that is there as long as the setting at `path` has a problem. Put it in place with `grid`."""

    def __init__(self, parent: tkinter.Misc, app: App, path: str):
        super().__init__(parent, text="", font=app.theme.font(12), anchor="w", justify="left")
        self.app, self._path = app, path
        wrap_to(parent, self, app.theme)
        self._unsubscribe = app.problems.subscribe(self.refresh)

    def grid(self, **options) -> None:
        super().grid(**options)
        self.refresh()

    def refresh(self) -> None:
        problems = self.app.problems.at(self._path)
        text = "\n".join(problem.message for problem in problems)
        if text != self.cget("text"):
            colour = Theme.error if problems and problems[0].blocking else Theme.warning
            self.configure(text=text, text_color=colour)
        if text and not self.winfo_manager():
            super().grid()
        elif not text and self.winfo_manager():
            self.grid_remove()

    def destroy(self) -> None:
        self._unsubscribe()
        super().destroy()
