"""The window with a summary of what a run will do, shown before it starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from modules.ui.theme import Theme
from modules.ui.windows.TextWindow import TextWindow

if TYPE_CHECKING:
    from modules.ui.App import App


class RunSummaryWindow(TextWindow):
    """summary: the output of scripts/train.py --dry-run. start: the action of the button Start; None: no button."""

    def __init__(self, app: App, summary: str, start: Callable[[], None] | None = None):
        heading = "This is what the run will do." if start else "This is what a run of these settings would do."
        super().__init__(app, "Run summary", heading, summary)
        self._start = start
        self.add_button("Cancel" if start else "Close", self.destroy, is_main=start is None)
        self.add_button("Copy", self.copy)
        if start is not None:
            button = self.add_button("Start", self.start, is_main=True)
            button.configure(fg_color=Theme.start, hover_color=Theme.start_hover)
            self.bind("<F5>", lambda event: self.start())

    def start(self) -> None:
        start = self._start
        # Don't return the focus to where it was: that may be the button that stops the run, and a second key press
        # meant for this button would trigger it.
        self.app.root.focus_set()
        self.destroy()
        if start is not None:
            start()
