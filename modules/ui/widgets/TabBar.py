"""The row of tab buttons."""

from __future__ import annotations

import sys
import tkinter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.ui import keyboard
from modules.ui.theme import Theme

if TYPE_CHECKING:
    from modules.ui.App import App


class TabBar(ctk.CTkFrame):
    """choose: called with the name of the tab that the user selects."""

    def __init__(self, parent: tkinter.Misc, app: App, names: Sequence[str], choose: Callable[[str], None]):
        super().__init__(parent, fg_color=Theme.control, corner_radius=8)
        self.names = list(names)
        self._app, self._choose = app, choose
        self._num_columns = 0
        self.selected = ""
        self.buttons: dict[str, ctk.CTkButton] = {}
        for name in names:
            button = ctk.CTkButton(
                self,
                text=tab_title(name),
                width=30,
                height=28,
                font=app.theme.font(),
                fg_color="transparent",
                command=lambda name=name: choose(name),
            )
            for key, step in (("<Left>", -1), ("<Right>", 1)):
                button._canvas.bind(key, lambda event, step=step: self.choose_neighbour(step))
            keyboard.focus_instead(button._text_label, button._canvas)
            self.buttons[name] = button
        self.fit(sys.maxsize)

    def fit(self, width: int) -> None:
        """Arrange the tabs in as many rows as they need in `width` pixels."""
        widths = [button.winfo_reqwidth() + self._gap() for button in self.buttons.values()]
        columns = next(
            (count for count in range(len(widths), 1, -1) if _row_width(widths, count) + 2 * self._gap() <= width), 1
        )
        if columns == self._num_columns:
            return
        self._num_columns = columns
        for number, button in enumerate(self.buttons.values()):
            row, column = divmod(number, columns)
            button.grid(row=row, column=column, sticky="ew", padx=2, pady=3)

    def _gap(self) -> int:
        return self._app.theme.scaled(4)

    def select(self, name: str) -> None:
        """Highlight a tab as selected."""
        for other, button in self.buttons.items():
            chosen = other == name
            button._canvas.configure(takefocus=chosen or not name)  # one stop of the Tab key; arrows go on from there
            if chosen or other == self.selected:
                button.configure(
                    fg_color=Theme.selected if chosen else "transparent",
                    hover_color=Theme.selected_hover if chosen else Theme.control_hover,
                    text_color=Theme.on_accent if chosen else Theme.text,
                )
        self.selected = name

    def focus_on(self, name: str) -> None:
        """Focus the button of a tab."""
        self.buttons[name]._canvas.focus_set()

    def choose_neighbour(self, step: int) -> None:
        """Go to the next or previous tab, wrapping around."""
        place = self.names.index(self.selected) if self.selected else 0
        self._choose(self.names[(place + step) % len(self.names)])


def tab_title(name: str) -> str:
    """The name of a tab as it is shown."""
    return name[0].upper() + name[1:]


def _row_width(widths: Sequence[int], num_columns: int) -> int:
    """The width of a table with this many columns, filled row by row."""
    return sum(max(widths[column::num_columns]) for column in range(num_columns))
