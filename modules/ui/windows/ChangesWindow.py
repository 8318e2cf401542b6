"""The window that lists settings with two values each: the preset's and the current one, or the current one and
another preset's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.config.errors import ConfigError
from modules.ui.windows.TableWindow import Row, TableWindow

if TYPE_CHECKING:
    from modules.ui.App import App

COLUMNS = {"Setting": 270, "First": 210, "Second": 210}


@dataclass(frozen=True)
class Changes:
    """The content of the window. headings: of the two columns of values."""

    title: str
    headings: tuple[str, str]
    rows: Sequence[Row]


class ChangesWindow(TableWindow):
    """find: returns the content, and is called again after each change of the settings. If it then raises ConfigError,
    the window closes with that message.

    opener: the window from which it was opened and to which it returns; an action of either closes both.
    """

    def __init__(
        self,
        app: App,
        find: Callable[[], Changes],
        actions: Sequence[tuple[str, Callable[[list[str]], None]]],
        many: bool = False,
        opener: TableWindow | None = None,
    ):
        self._find, changes, self._opener = find, find(), opener
        self._end_view: Callable[[], None] = lambda: None  # set before anything that may fail, as `destroy` uses it
        super().__init__(app, changes.title, COLUMNS, (), actions, many)
        self._show(changes)
        self._end_view = app.views.add(self, lambda paths: self._follow()).end

    def destroy(self) -> None:
        self._end_view()
        super().destroy()
        if self._opener is not None and self._opener.winfo_exists():
            self._opener.lift()
            (self._opener.focus_lastfor() or self._opener).focus_set()

    def _act(self, action: Callable[[list[str]], None]) -> None:
        if self._opener is not None and self.table.selection():
            self._opener.destroy()
        super()._act(action)

    def _follow(self) -> None:
        if self._opener is not None and not self._opener.winfo_exists():  # a choice in it has made these changes moot
            self.destroy()
            return
        try:
            self._show(self._find())
        except ConfigError as error:
            self.app.show_message(str(error), "error")
            self.destroy()

    def _show(self, changes: Changes) -> None:
        self.title(changes.title)
        for column, heading in zip(list(COLUMNS)[1:], changes.headings, strict=True):
            self.table.heading(column, text=heading)
        self.take_rows(changes.rows)
