"""The large button that starts a run."""

from __future__ import annotations

import tkinter
from collections.abc import Callable
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.ui.theme import Theme

if TYPE_CHECKING:
    from modules.ui.App import App
    from modules.ui.models.RunState import RunState


class StartButton(ctk.CTkButton):
    """Disabled while a run is active."""

    def __init__(self, parent: tkinter.Misc, app: App, text: str, command: Callable[[], object]):
        super().__init__(parent, text=text, width=150, height=38, font=app.theme.font(14, "bold"), command=command)
        self.configure(hover_color=Theme.start_hover, text_color=Theme.on_accent, text_color_disabled=Theme.muted)
        self._unsubscribe = app.run.subscribe(self._on_run)
        self._on_run(app.run.state)

    def destroy(self) -> None:
        self._unsubscribe()
        super().destroy()

    def _on_run(self, state: RunState) -> None:
        wanted, colour = ("disabled", Theme.control) if state.is_running else ("normal", Theme.start)
        if self.cget("state") != wanted or self.cget("fg_color") != colour:
            self.configure(state=wanted, fg_color=colour)
