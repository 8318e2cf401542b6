"""A list of parts, such as embeddings: a form for each, and buttons to add and remove parts."""

from __future__ import annotations

import tkinter
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.describe import settings_by_path
from modules.ui.theme import Theme
from modules.ui.widgets.form import SettingsForm
from modules.ui.widgets.ProblemNote import ProblemNote
from modules.ui.widgets.scrolling import bring_into_sight

if TYPE_CHECKING:
    from modules.ui.App import App


class PartList(ctk.CTkFrame):
    """The parts of the list of settings at `path`, as a card of a SettingsPage."""

    def __init__(self, parent: tkinter.Misc, app: App, path: str):
        super().__init__(parent, fg_color=Theme.card, corner_radius=8)
        info = app.settings.info(path)
        self.app, self._path, self._noun = app, path, info.part_name
        self._names = [one.removeprefix(f"{path}[].") for one in settings_by_path() if one.startswith(f"{path}[].")]
        self._parts: list[ctk.CTkFrame] = []
        self.grid_columnconfigure(0, weight=1)
        label = ctk.CTkLabel(self, text=info.label, font=app.theme.font(15, "bold"), anchor="w")
        label.grid(row=0, column=0, sticky="ew", padx=12, pady=(8, 2))
        self.problem = ProblemNote(self, app, path)
        self._add = ctk.CTkButton(self, text=f"Add {info.part_name}", command=lambda: app.settings.add(path))
        self._unsubscribe = app.settings.subscribe(self._changed)
        self._rebuild()

    def focus_add(self) -> None:
        """Scroll to the button that adds a part and focus it."""
        bring_into_sight(self.app, self._add)
        self._add._canvas.focus_set()

    def destroy(self) -> None:
        self._unsubscribe()
        super().destroy()

    def _changed(self, paths: set[str]) -> None:
        if len(self.app.settings.get(self._path)) != len(self._parts):
            self._rebuild()

    def _rebuild(self) -> None:
        for part in self._parts:
            part.destroy()
        count = len(self.app.settings.get(self._path))
        self._parts = [self._make_part(index) for index in range(count)]
        self.problem.grid(row=count + 1, column=0, sticky="w", padx=12)
        self._add.grid(row=count + 2, column=0, sticky="w", padx=12, pady=(4, 12))

    def _make_part(self, index: int) -> ctk.CTkFrame:
        part = ctk.CTkFrame(self, fg_color="transparent", border_width=1, border_color=Theme.line)
        part.grid(row=index + 1, column=0, sticky="ew", padx=12, pady=4)
        part.grid_columnconfigure(0, weight=1)
        form = SettingsForm(part, self.app, [f"{self._path}.{index}.{name}" for name in self._names])
        form.grid(row=0, column=0, sticky="ew", padx=2, pady=2)
        remove = ctk.CTkButton(
            part, text=f"Remove {self._noun}", command=lambda: self.app.settings.remove(self._path, index)
        )
        remove.grid(row=1, column=0, sticky="w", padx=10, pady=(0, 8))
        return part
