"""The window that shows what becomes of another program's settings, before they replace anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from modules.config.counted import counted
from modules.importers.ImportResult import ImportResult
from modules.ui.windows.TextWindow import TextWindow

if TYPE_CHECKING:
    from modules.ui.App import App


class ImportWindow(TextWindow):
    """take: called with the result, and whether only its data is wanted."""

    def __init__(self, app: App, name: str, result: ImportResult, take: Callable[[ImportResult, bool], None]):
        self._result, self._take = result, take
        taken, changed, left = (
            sum(line.is_given for line in lines) for lines in (result.taken, result.changed, result.left)
        )  # as the lists below count them
        heading = (
            f"{name} is of {result.program}: {counted(taken, 'setting')} with the same meaning, "
            f"{changed} with another one here, {left} not taken. Nothing is replaced yet."
        )
        super().__init__(app, "Import settings", heading, result.text(), size="860x560")
        self.add_button("Cancel", self.destroy)
        if result.has_concepts:
            self.add_button("Data only", lambda: self._use(True))
        self.add_button("Use settings", lambda: self._use(False), is_main=True)

    def _use(self, data_only: bool) -> None:
        self.destroy()
        self._take(self._result, data_only)
