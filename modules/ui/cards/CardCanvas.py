"""A drawing on a card, redrawn when its content changes."""

from __future__ import annotations

import tkinter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modules.ui.App import App


class CardCanvas(tkinter.Canvas):
    """Base class: a subclass defines what its drawing depends on, and draws it."""

    def __init__(self, parent: tkinter.Misc, app: App):
        # width: as much as the card gives, and none that would widen it
        super().__init__(parent, highlightthickness=0, borderwidth=0, width=1, height=1, takefocus=0)
        self._app = app
        self._drawn: tuple | None = None
        self._is_due = False
        self._end_theme = app.theme.on_change(self.redraw)
        self.bind("<Configure>", lambda event: self.redraw())

    # --- for subclasses to override -----------------------------------------------------------------------------------

    def contents(self) -> tuple | None:
        """Everything that the drawing depends on except colours and size; None if there is nothing to draw yet."""
        raise NotImplementedError

    def draw(self) -> None:
        """Draw on the empty canvas."""
        raise NotImplementedError

    # --- public methods -----------------------------------------------------------------------------------------------

    def redraw(self) -> None:
        """Draw once, after all pending events, if anything has changed."""
        if not self._is_due:
            self._is_due = True
            self._app.after_idle(self._draw_changed)  # the canvas's own after_idle would fail if it is destroyed

    def destroy(self) -> None:
        self._end_theme()
        super().destroy()

    # --- for subclasses -----------------------------------------------------------------------------------------------

    def _set_height(self, height: int) -> None:
        """height: in screen pixels."""
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
