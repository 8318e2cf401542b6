"""The row of tabs: a button for each, of which one is selected."""

from __future__ import annotations

import tkinter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.ui.theme import Theme

if TYPE_CHECKING:
    from modules.ui.App import App


class TabBar(ctk.CTkFrame):
    """choose: called with the name of a tab that the person wants to see."""

    def __init__(self, parent: tkinter.Misc, app: App, names: Sequence[str], choose: Callable[[str], None]):
        super().__init__(parent, fg_color=Theme.control, corner_radius=8)
        self.names = list(names)
        self._choose = choose
        self.selected = ""
        self.buttons: dict[str, ctk.CTkButton] = {}
        for name in names:
            button = ctk.CTkButton(
                self,
                text=name,
                width=30,
                height=28,
                font=app.theme.font(),
                fg_color="transparent",
                command=lambda name=name: choose(name),
            )
            button.pack(side="left", padx=2, pady=3)
            for key, step in (("<Left>", -1), ("<Right>", 1)):
                button._canvas.bind(key, lambda event, step=step: self._move_focus(step))
            self.buttons[name] = button

    def select(self, name: str) -> None:
        """Show a tab as the selected one."""
        for other, button in self.buttons.items():
            chosen = other == name
            if chosen or other == self.selected:
                button.configure(
                    fg_color=Theme.selected if chosen else "transparent",
                    hover_color=Theme.selected_hover if chosen else Theme.control_hover,
                    text_color=Theme.on_accent if chosen else Theme.text,
                )
        self.selected = name

    def choose_neighbour(self, step: int) -> None:
        """Go to the next tab or the one before, around the ends."""
        place = self.names.index(self.selected) if self.selected else 0
        self._choose(self.names[(place + step) % len(self.names)])

    def _move_focus(self, step: int) -> None:
        self.choose_neighbour(step)
        self.buttons[self.selected]._canvas.focus_set()
