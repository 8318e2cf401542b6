"""The window with the doctor's findings: whether this machine can train the settings, and what to do if not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from modules.config.errors import UserError
from modules.machine.doctor.CheckResult import CheckResult
from modules.machine.doctor.report import can_train, result_lines, verdict
from modules.ui.models.ScriptRun import ScriptRun
from modules.ui.models.typed_text import WRONG_SETTING
from modules.ui.theme import Theme
from modules.ui.windows.TextWindow import TextWindow

if TYPE_CHECKING:
    from modules.ui.App import App

COLOURS = {"warning": Theme.warning, "fails": Theme.error}
HINT = "Checking packages, GPUs, disks and the network, and measuring how fast ranks exchange gradients…"


class DoctorWindow(TextWindow):
    """`check` examines the current settings; closing the window cancels it. results: of the last check."""

    def __init__(self, app: App):
        super().__init__(app, "Doctor", "", "", size="900x640")
        self.results: list[CheckResult] = []
        self._script: ScriptRun | None = None
        self._end_theme = app.theme.on_change(self._restyle)
        self.again = self.add_button("Check again", self.check)
        self.add_button("Copy", self.copy)
        self.add_button("Close", self.destroy, is_main=True)
        self._restyle()

    def destroy(self) -> None:
        self._end_theme()
        if self._script is not None:
            self._script.cancel()
        super().destroy()

    def check(self) -> None:
        """Start a check, unless one is running."""
        if self._script is not None:
            return
        config = self.app.settings.config()
        if config is None:
            self._tell(WRONG_SETTING, Theme.error)
            return
        self._script = ScriptRun("doctor.py", config, ["--json"])
        self.again.configure(state="disabled")
        self._tell(HINT)
        self.app.in_background(self._script.run, self._show, self._fail)

    def _show(self, output: bytes | None) -> None:
        if output is None or not self.winfo_exists():  # the window was closed
            return
        self._end()
        self.results = [CheckResult(**check) for check in json.loads(output)["checks"]]
        self._tell(verdict(self.results), Theme.text if can_train(self.results) else Theme.error)
        self.show_text("\n".join(line for result in self.results for line in result_lines(result)))
        first = 1
        for result in self.results:
            after = first + len(result_lines(result))
            self.box.tag_add(result.state, f"{first}.0", f"{after}.0")
            first = after

    def _fail(self, error: Exception) -> None:
        if self.winfo_exists():
            self._end()
        if not isinstance(error, UserError):
            raise error
        if self.winfo_exists():
            self._tell(str(error), Theme.error)

    def _end(self) -> None:
        self._script = None
        self.again.configure(state="normal")

    def _tell(self, text: str, colour: tuple[str, str] = Theme.text) -> None:
        self.heading.configure(text=text, text_color=colour)

    def _restyle(self) -> None:
        for state, colour in COLOURS.items():
            self.box.tag_config(state, foreground=self.app.theme.now(colour))
