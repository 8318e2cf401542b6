"""Says whether the next run fits into the memory of a GPU, with a button that makes it fit."""

from __future__ import annotations

import tkinter
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.presets import MEMORY_SIZES
from modules.ui.models.memory_fit import memory_fit, memory_of_gpus
from modules.ui.theme import Theme
from modules.ui.widgets.fitting import wrap_to
from modules.ui.widgets.Tooltip import Tooltip

if TYPE_CHECKING:
    from modules.config.problems import Remedy
    from modules.ui.App import App

MENU_WIDTH = 84
LABELS = {f"{size} GB": size for size in MEMORY_SIZES}


class MemoryFitRow(ctk.CTkFrame):
    """Without a GPU, the user chooses for which memory. It is empty for a family of unknown size, and while a
    setting is invalid.

    taken: the width beside the text that something else takes, unscaled.
    """

    def __init__(self, parent: tkinter.Misc, app: App, taken: int):
        super().__init__(parent, fg_color="transparent")
        self.app = app
        self.grid_columnconfigure(1, weight=1)
        font = app.theme.font(12)
        self.menu = ctk.CTkOptionMenu(
            self, values=list(LABELS), width=MENU_WIDTH, height=22, font=font, dropdown_font=font, command=self._choose
        )
        Tooltip(self.menu, app.theme, lambda: "No GPU found: choose the GPU memory to estimate for.")
        self.text = ctk.CTkLabel(self, text="", height=20, anchor="w", justify="left", font=font)
        self.text.grid(row=0, column=1, sticky="ew")
        wrap_to(parent, self.text, app.theme, taken=taken)
        self.button = ctk.CTkButton(self, text="Apply these settings", width=44, height=24, font=font)
        self._remedy: Remedy | None = None
        self.button.configure(command=self._apply)
        self._view = app.views.add(self, lambda paths: self.refresh())
        self._unsubscribe = app.devices.subscribe(lambda what: self._view.invalidate(set()))
        self.refresh()

    def destroy(self) -> None:
        self._view.end()
        self._unsubscribe()
        super().destroy()

    def refresh(self) -> None:
        config, devices = self.app.settings.in_effect, self.app.devices
        memory = memory_of_gpus(config, devices)
        is_valid = not self.app.settings.refused_input()
        fit = memory_fit(config, devices, memory or self.app.preferences.gpu_memory) if is_valid else None
        self._remedy = fit.remedy if fit else None
        self.menu.set(f"{self.app.preferences.gpu_memory} GB")
        if fit and memory is None:
            self.menu.grid(row=0, column=0, sticky="nw", padx=(0, 8))
        else:
            self.menu.grid_remove()
        if (text := fit.text if fit else "") != self.text.cget("text"):
            self.text.configure(text=text, text_color=Theme.success if fit and fit.fits else Theme.warning)
        if self._remedy:
            self.button.grid(row=1, column=0, columnspan=2, sticky="w", pady=(2, 4))
        else:
            self.button.grid_remove()

    def _choose(self, label: str) -> None:
        self.app.preferences.gpu_memory = LABELS[label]
        self.app.views.invalidate()

    def _apply(self) -> None:
        if self._remedy is not None:
            self.app.problems.apply(self._remedy)
