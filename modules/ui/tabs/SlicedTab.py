"""What the tabs share that are built in slices."""

from __future__ import annotations

import tkinter
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import customtkinter as ctk

if TYPE_CHECKING:
    from modules.ui.App import App


class SlicedTab(ctk.CTkFrame):
    """A tab whose `_build` makes its parts one at a time, so that opening it never stalls the window.

    A subclass passes `_steps` to `app.in_slices` at the end of its __init__, and adds to `_ends` what is to be called
    when the tab is destroyed, such as functions that unsubscribe.
    """

    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, fg_color="transparent")
        self.app = app
        self._ends: list[Callable[[], object]] = []
        self._steps = self._build()  # which runs nothing yet

    def _build(self) -> Generator[None, None, None]:
        raise NotImplementedError

    def destroy(self) -> None:
        for end in self._ends:
            end()
        self._steps.close()
        super().destroy()
