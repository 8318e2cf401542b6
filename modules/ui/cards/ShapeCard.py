"""The card with the effects of devices and settings: processes, batch, steps, learning rates and memory."""

from __future__ import annotations

import tkinter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.ui.cards.Card import Card
from modules.ui.cards.MemoryFitRow import MENU_WIDTH, MemoryFitRow
from modules.ui.theme import Theme
from modules.ui.widgets.fitting import wrap_to

if TYPE_CHECKING:
    from modules.ui.App import App

LABELS = ("Processes", "Batch", "Steps", "Learning rate", "Memory")
LABEL_WIDTH = 100


class ShapeCard(Card):
    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, app, "Effective batch and steps")
        table = ctk.CTkFrame(self, fg_color="transparent")
        table.grid(row=1, column=0, sticky="ew", padx=12, pady=(0, 6))
        table.grid_columnconfigure(1, weight=1)
        self._texts: dict[str, ctk.CTkLabel] = {}
        for row, label in enumerate(LABELS):
            name = ctk.CTkLabel(table, text=label, width=LABEL_WIDTH, anchor="w", text_color=Theme.muted)
            name.grid(row=row, column=0, sticky="nw", pady=1)
            text = ctk.CTkLabel(table, text="", anchor="w", justify="left", font=app.theme.font())
            text.grid(row=row, column=1, sticky="ew", pady=1)
            wrap_to(self, text, app.theme, LABEL_WIDTH + 32)
            self._texts[label] = text
        self.fit = MemoryFitRow(table, app, taken=LABEL_WIDTH + MENU_WIDTH + 32)
        self.fit.grid(row=len(LABELS), column=1, sticky="ew", pady=1)

    def show(self, lines: Sequence[tuple[str, str]]) -> None:
        """lines: (label, text) for labels in LABELS; missing ones are shown as a dash."""
        texts = dict(lines)
        for label, widget in self._texts.items():
            if widget.cget("text") != (text := texts.get(label, "-")):
                widget.configure(text=text)

    def text(self, label: str) -> str:
        """The text beside a label."""
        return self._texts[label].cget("text")
