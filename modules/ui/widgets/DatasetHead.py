"""The upper end of the dataset window: whose images it shows, what can be done with all of them, and a line on them."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import customtkinter as ctk

from modules.ui.widgets.fitting import wrap_to
from modules.ui.widgets.FoldingRow import FoldingRow
from modules.ui.widgets.Tooltip import Tooltip

if TYPE_CHECKING:
    from modules.ui.App import App


class Tool(NamedTuple):
    """A button. hint: its tooltip."""

    text: str
    command: Callable[[], object]
    hint: str


class DatasetHead(ctk.CTkFrame):
    """on_concept: called with the name that is chosen. buttons: by their text."""

    def __init__(self, parent: tk.Misc, app: App, on_concept: Callable[[str], object], tools: Sequence[Tool]):
        super().__init__(parent, fg_color="transparent")
        theme, font = app.theme, app.theme.font()
        self._theme = theme
        self.grid_columnconfigure(0, weight=1)
        row = self._row = ctk.CTkFrame(self, fg_color="transparent")
        row.grid(row=0, column=0, sticky="ew")
        self.concept = ctk.CTkOptionMenu(row, values=[""], width=160, font=font, command=on_concept)
        self.buttons = {tool.text: ctk.CTkButton(row, text=tool.text, width=70, font=font) for tool in tools}
        for tool in tools:
            self.buttons[tool.text].configure(command=tool.command)
            Tooltip(self.buttons[tool.text], theme, partial(str, tool.hint))
        self.row = FoldingRow(row, [self.concept, *self.buttons.values()], app, lambda: [self.concept])
        self.state = ctk.CTkLabel(self, text="", font=font, anchor="w", justify="left", text_color=theme.muted)
        self.state.grid(row=1, column=0, sticky="ew", pady=(4, 0))
        wrap_to(self, self.state, theme)

    def fold(self, is_folded: bool) -> None:
        """Show the line alone, to leave more room to what is edited."""
        (self._row.grid_remove if is_folded else self._row.grid)()

    def show_concepts(self, names: Sequence[str], shown: str) -> None:
        self.concept.configure(values=list(names))
        self.concept.set(shown)

    def tell(self, text: str, is_wrong: bool) -> None:
        if self.state.cget("text") != text:
            self.state.configure(text=text, text_color=self._theme.error if is_wrong else self._theme.muted)
