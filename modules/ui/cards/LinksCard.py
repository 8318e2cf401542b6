"""The card with the links between the GPUs and a test of their speed."""

from __future__ import annotations

import tkinter
from typing import TYPE_CHECKING

from modules.ui.cards.Card import Card
from modules.ui.cards.LinkMatrix import LinkMatrix
from modules.ui.keyboard import pressed_once
from modules.ui.models.CommunicationTest import CommunicationTest, Measured
from modules.ui.models.DeviceModel import DeviceModel
from modules.ui.models.typed_text import WRONG_SETTING
from modules.ui.theme import Theme

if TYPE_CHECKING:
    from modules.ui.App import App


class LinksCard(Card):
    """measured: the result of the last test, None before it."""

    def __init__(self, parent: tkinter.Misc, app: App, model: DeviceModel):
        super().__init__(parent, app, "Links")
        self._model = model
        self._test: CommunicationTest | None = None
        self.measured: Measured | None = None
        self.matrix = LinkMatrix(self, app, model)
        self.matrix.grid(row=1, column=0, sticky="ew", padx=2)
        self._note = self.add_note(2)
        [self.button] = self.add_buttons(3, ("Test communication", pressed_once(self.toggle)))

    def destroy(self) -> None:
        if self._test is not None:
            self._test.cancel()
        super().destroy()

    def show_machine(self) -> None:
        self.matrix.show_machine()
        if self.measured is None and self._test is None:
            count = len(self._model.gpus)
            self._tell("" if count > 1 else "One GPU: there is nothing to link." if count else "CPU ranks use gloo.")

    def toggle(self) -> None:
        """Start a test, or cancel a running one."""
        if self._test is not None:
            self._test.cancel()
            return
        config = self.app.settings.config()
        if config is None:
            self._tell(WRONG_SETTING, Theme.error)
            return
        if self._model.machine is None:
            self._tell("The devices of this machine are still looked for: try again in a moment.")
            return
        self._test = CommunicationTest()
        try:
            self._test.start(config, self._model.machine)
        except OSError as error:
            self._finish(Measured({}, f"The test can't be started: {error.strerror}.", failed=True))
            return
        self.button.configure(text="Cancel the test")
        self._tell("Measuring an all-reduce between each pair, and between all…")
        self.app.in_background(self._test.wait, self._finish, self._fail)

    def _finish(self, measured: Measured) -> None:
        self._test, self.measured = None, measured
        if not self.winfo_exists():
            return
        self.button.configure(text="Test communication")
        self.matrix.show_speeds(measured.pairs)
        self._tell(measured.text, Theme.error if measured.failed else Theme.success)

    def _fail(self, error: Exception) -> None:
        self._finish(Measured({}, "The test has failed.", failed=True))
        raise error

    def _tell(self, text: str, colour: tuple[str, str] = Theme.muted) -> None:
        self._note.configure(text=text, text_color=colour)
        (self._note.grid if text else self._note.grid_remove)()
