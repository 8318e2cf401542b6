"""How long the next run takes and how much memory it needs, as far as that is known."""

from __future__ import annotations

import tkinter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.machine.run_shape import steps_text
from modules.ui.cards.MemoryFitRow import MENU_WIDTH, MemoryFitRow
from modules.ui.models.typed_text import WRONG_SETTING
from modules.ui.theme import Theme
from modules.ui.widgets.fitting import wrap_to

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.ui.App import App

LABEL_WIDTH = 64
LINES = ("Steps", "Memory", "Time")
UNKNOWN = {"Steps": f"- ({WRONG_SETTING[:-1].lower()})", "Memory": "-", "Time": ""}  # while a setting is invalid


class RunEstimate(ctk.CTkFrame):
    """Lines for steps, memory, whether it fits, and time; the last only if the speed of these settings was measured.

    names: the lines wanted; that it fits is said with the memory.
    """

    def __init__(self, parent: tkinter.Misc, app: App, names: Sequence[str] = LINES):
        super().__init__(parent, fg_color="transparent")
        self.app = app
        self.grid_columnconfigure(1, weight=1)
        self.lines = {name: self._add_line(2 * LINES.index(name), name) for name in names}
        self.fit = MemoryFitRow(self, app, taken=LABEL_WIDTH + MENU_WIDTH + 20)
        self.fit.grid(row=2 * LINES.index("Memory") + 1, column=1, sticky="ew")
        self._view = app.views.add(self, lambda paths: self.refresh())
        self._unsubscribe = app.devices.subscribe(lambda what: self._view.invalidate(set()))
        self.refresh()

    def destroy(self) -> None:
        self._view.end()
        self._unsubscribe()
        super().destroy()

    def refresh(self) -> None:
        texts = UNKNOWN if self.app.settings.refused_input() else self._texts(self.app.settings.in_effect)
        for name, (label, text) in self.lines.items():
            if text.cget("text") != texts[name]:
                text.configure(text=texts[name])
            for widget in (label, text):
                widget.grid() if texts[name] else widget.grid_remove()

    def _texts(self, config: TrainConfig) -> dict[str, str]:
        devices = self.app.devices
        shape = devices.shape(config)
        return {
            "Steps": steps_text(shape, config) if shape else "-",
            "Memory": devices.memory_text(config),
            "Time": devices.time_text(config),
        }

    def _add_line(self, row: int, name: str) -> tuple[ctk.CTkLabel, ctk.CTkLabel]:
        font = self.app.theme.font(12)
        label = ctk.CTkLabel(self, text=name, width=LABEL_WIDTH, height=20, anchor="w", font=font)
        label.configure(text_color=Theme.muted)
        label.grid(row=row, column=0, sticky="nw")
        text = ctk.CTkLabel(self, text="", height=20, anchor="w", justify="left", font=font)
        text.grid(row=row, column=1, sticky="ew")
        wrap_to(self, text, self.app.theme, taken=LABEL_WIDTH + 12)
        return label, text
