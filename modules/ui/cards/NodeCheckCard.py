"""The card that checks whether several machines reach each other and match in settings and versions."""

from __future__ import annotations

import math
import threading
import tkinter
from typing import TYPE_CHECKING

from modules.config.errors import UserError
from modules.launch.node_check import check_nodes
from modules.ui.cards.Card import Card
from modules.ui.keyboard import pressed_once
from modules.ui.models.typed_text import WRONG_SETTING
from modules.ui.theme import Theme

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.ui.App import App

SHOW_SECONDS = 0.2  # between updates of the progress shown
HINT = (
    "Run the check on every machine, or start the commands, which run it first: node 0 listens on the port, the "
    "others connect to it, and settings and versions are compared."
)


class _Check:
    """A check running in a thread. state: which nodes it waits for."""

    def __init__(self, config: TrainConfig):
        self.config = config
        self.state = "Reading versions…"
        self.is_over = threading.Event()

    def run(self) -> list[str]:
        return check_nodes(self.config, self._tell, self.is_over.is_set, math.inf)

    def _tell(self, text: str) -> None:
        self.state = text[0].upper() + text[1:]


class NodeCheckCard(Card):
    """Runs one check at a time, which ends with the window."""

    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, app, "Check")
        self._check: _Check | None = None
        self.add_note(1).configure(text=HINT)
        self.note = self.add_note(2, Theme.text)
        [self.button] = self.add_buttons(3, ("Check nodes", pressed_once(self.toggle)))
        self._end_showing = app.every(SHOW_SECONDS, self._show_state)

    @property
    def is_checking(self) -> bool:
        return self._check is not None

    def toggle(self) -> None:
        """Start a check, or stop a running one."""
        if self._check is not None:
            self.stop()
            return
        config = self.app.settings.config()
        if config is None:
            self._tell(WRONG_SETTING, is_bad=True)
            return
        if config.num_nodes == 1:
            self._tell("Raise the number of machines first.")
            return
        check = self._check = _Check(config)
        self.button.configure(text="Stop the check")
        self._show_state()
        self.app.in_background(
            check.run, lambda found: self._finish(check, found), lambda error: self._fail(check, error)
        )

    def stop(self) -> None:
        if self._check is not None:
            self._end("Stopped.")

    def destroy(self) -> None:
        self._end_showing()
        if self._check is not None:
            self._check.is_over.set()
            self._check = None
        super().destroy()

    def _show_state(self) -> None:
        if self._check is not None and self.note.cget("text") != self._check.state:
            self._tell(self._check.state)

    def _finish(self, check: _Check, found: list[str]) -> None:
        if check is self._check:  # not stopped
            self._end("\n".join(f"✓ {line}" for line in found))

    def _fail(self, check: _Check, error: Exception) -> None:
        if check is self._check:
            self._end(f"✕ {error}", is_bad=True)
        if not isinstance(error, UserError):
            raise error

    def _end(self, text: str, is_bad: bool = False) -> None:
        assert self._check is not None
        self._check.is_over.set()
        self._check = None
        self.button.configure(text="Check nodes")
        self._tell(text, is_bad)

    def _tell(self, text: str, is_bad: bool = False) -> None:
        self.note.configure(text=text, text_color=Theme.error if is_bad else Theme.text)
