"""The card with the effects of devices and settings: processes, batch, steps, learning rates, memory and problems."""

from __future__ import annotations

import tkinter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.validation import Problem
from modules.ui.cards.Card import Card
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
        self._problems: list[ctk.CTkLabel] = []

    def show(self, lines: Sequence[tuple[str, str]], problems: Sequence[Problem]) -> None:
        """lines: (label, text) for labels in LABELS; missing ones are shown as a dash."""
        texts = dict(lines)
        for label, widget in self._texts.items():
            if widget.cget("text") != (text := texts.get(label, "-")):
                widget.configure(text=text)
        while len(self._problems) < len(problems):
            self._problems.append(self.add_note(2 + len(self._problems)))
        for number, label in enumerate(self._problems):
            if number >= len(problems):
                label.grid_remove()
                continue
            problem = problems[number]
            text = f"{'✕' if problem.blocking else '!'} {problem.message}"
            if label.cget("text") != text:
                label.configure(text=text, text_color=Theme.error if problem.blocking else Theme.warning)
            label.grid()

    def text(self, label: str) -> str:
        """The text beside a label."""
        return self._texts[label].cget("text")
