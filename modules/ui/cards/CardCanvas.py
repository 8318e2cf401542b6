"""A drawing on a card, made again where what it shows has changed."""

from __future__ import annotations

import tkinter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modules.ui.App import App


class CardCanvas(tkinter.Canvas):
    """Base of such drawings: a subclass says what its own depends on and draws it."""

    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, highlightthickness=0, borderwidth=0, height=1, takefocus=0)
        self._app = app
        self._drawn: tuple | None = None
        self._is_due = False
        self._end_theme = app.theme.on_change(self.redraw)
        self.bind("<Configure>", lambda event: self.redraw())

    # --- what a subclass says -----------------------------------------------------------------------------------------

    def contents(self) -> tuple | None:
        """All that the drawing depends on, colours and sizes apart; None where there is nothing to draw yet."""
        raise NotImplementedError

    def draw(self) -> None:
        """Draw on the empty canvas."""
        raise NotImplementedError

    # --- for others ---------------------------------------------------------------------------------------------------

    def redraw(self) -> None:
        """Draw once, when other events are done, if anything is another than it was."""
        if not self._is_due:
            self._is_due = True
            self._app.after_idle(self._draw_changed)  # its own would end with an error if it is destroyed

    def destroy(self) -> None:
        self._end_theme()
        super().destroy()

    # --- for subclasses -----------------------------------------------------------------------------------------------

    def _set_height(self, height: int) -> None:
        """height: pixels of the screen."""
        if int(self.cget("height")) != height:
            self.configure(height=height)

    def _draw_changed(self) -> None:
        self._is_due = False
        if not self.winfo_exists():
            return
        theme, contents = self._app.theme, self.contents()
        depends_on = (theme.is_dark, theme.scaled(100), self.winfo_width(), contents)
        if self.winfo_width() <= 1 or contents is None or depends_on == self._drawn:
            return
        self._drawn = depends_on
        self.delete("all")
        self.configure(bg=theme.now(theme.card))
        self.draw()
