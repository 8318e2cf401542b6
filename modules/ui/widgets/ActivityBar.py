"""A progress bar that moves while nobody knows how far something is."""

from __future__ import annotations

import tkinter
from typing import TYPE_CHECKING

import customtkinter as ctk

if TYPE_CHECKING:
    from modules.ui.App import App

STEP_SECONDS = 0.1  # as often as needed to be seen: each step is drawn by a process that competes with the training
SPEED = 1.5  # CustomTkinter's bar crosses in 40 of these units


class ActivityBar(ctk.CTkProgressBar):
    """Shows a share, or that something goes on."""

    def __init__(self, parent: tkinter.Misc, app: App, **options):
        super().__init__(parent, **options)
        self.set(0)
        self._end = app.every(STEP_SECONDS, self._move)

    def destroy(self) -> None:
        self._end()
        super().destroy()

    @property
    def is_moving(self) -> bool:
        return self.cget("mode") == "indeterminate"

    def show(self, share: float | None) -> None:
        """share: of what is done, 0 to 1; None: unknown. Nothing is drawn if that is shown already."""
        if self.is_moving != (share is None):
            self.configure(mode="indeterminate" if share is None else "determinate")
        if share is not None and self.get() != share:
            self.set(share)

    def _move(self) -> None:
        if self.is_moving and self.winfo_viewable():
            self._indeterminate_value += SPEED
            self._draw(no_color_updates=True)
