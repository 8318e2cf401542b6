"""A card: a titled part of a page."""

from __future__ import annotations

import tkinter
from collections.abc import Callable
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.errors import UserError
from modules.ui.models.desktop import open_folder
from modules.ui.theme import Theme
from modules.ui.widgets.fitting import lay_in_rows, wrap_to

if TYPE_CHECKING:
    from modules.ui.App import App


class Card(ctk.CTkFrame):
    """A frame with a title. Its content goes into its single grid column, from row 1 on."""

    def __init__(self, parent: tkinter.Misc, app: App, title: str):
        super().__init__(parent, fg_color=Theme.card, corner_radius=8)
        self.app = app
        self.ends: list[Callable[[], object]] = []  # what is called when the card is destroyed
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(99, minsize=8)  # below the last row
        self._title = ctk.CTkLabel(self, text=title, font=app.theme.font(15, "bold"), anchor="w")
        self._title.grid(row=0, column=0, sticky="w", padx=12, pady=(8, 2))

    def destroy(self) -> None:
        for end in self.ends:
            end()
        super().destroy()

    def show_title(self, text: str) -> None:
        if self._title.cget("text") != text:
            self._title.configure(text=text)

    def open_run_folder(self) -> None:
        """Show the folder of the run in the file manager, or say why that is impossible."""
        folder = self.app.run.state.folder
        assert folder is not None  # of the run that the card shows
        try:
            open_folder(folder)
        except UserError as error:
            self.app.show_message(str(error), "error")

    def add_note(self, row: int, colour: tuple[str, str] = Theme.muted) -> ctk.CTkLabel:
        """Add a text that wraps to as many lines as it needs."""
        note = ctk.CTkLabel(self, text="", font=self.app.theme.font(12), text_color=colour, anchor="w", justify="left")
        note.grid(row=row, column=0, sticky="ew", padx=12, pady=2)
        wrap_to(self, note, self.app.theme)
        return note

    def add_buttons(self, row: int, *buttons: tuple[str, object]) -> list[ctk.CTkButton]:
        """Add buttons side by side, each given as (text, command)."""
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=row, column=0, sticky="ew", padx=12, pady=(4, 2))
        font = self.app.theme.font(12)
        made = [
            ctk.CTkButton(bar, text=text, width=20, height=26, font=font, command=command) for text, command in buttons
        ]
        lay_in_rows(bar, made, self.app.theme, gap=8)
        return made
