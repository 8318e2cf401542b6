"""The start page: try the demo, train one's own images, or go on with what was used last."""

from __future__ import annotations

import tkinter
from collections.abc import Generator
from typing import TYPE_CHECKING

from modules.ui.cards.Card import Card
from modules.ui.cards.DemoCard import DemoCard
from modules.ui.cards.OwnImagesCard import OwnImagesCard
from modules.ui.cards.RecentCard import RecentCard
from modules.ui.tabs.SlicedTab import SlicedTab
from modules.ui.widgets.dialogs import open_window
from modules.ui.widgets.Page import Page
from modules.ui.windows.BaseModelWindow import BaseModelWindow

if TYPE_CHECKING:
    from modules.ui.App import App

THREE_COLUMNS = 1140  # minimum width, unscaled
WEIGHTS = (5, 9, 7)  # of the columns
GAP = 6


class HomeTab(SlicedTab):
    """Three cards side by side, or below each other in a narrow window; there the demo is last for whoever has runs."""

    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, app)
        self.demo: DemoCard | None = None
        self.own: OwnImagesCard | None = None
        self.recent: RecentCard | None = None
        self._layout: tuple = ()
        self._page = Page(self)
        self._page.pack(fill="both", expand=True)
        self._page._parent_canvas.bind("<Configure>", lambda event: self._arrange(), add="+")
        app.in_slices(self._steps)

    def _build(self) -> Generator[None, None, None]:
        """Build the cards one at a time, so that the window is first drawn without waiting for them."""
        self.demo = DemoCard(self._page, self.app)
        self._arrange()
        yield
        self.own = OwnImagesCard(self._page, self.app, lambda: open_window(self.app, BaseModelWindow))
        self._arrange()
        yield
        self.recent = RecentCard(self._page, self.app, self._show_runs)
        self._arrange()

    def _show_runs(self) -> None:
        from modules.ui.windows.RunsWindow import RunsWindow

        open_window(self.app, RunsWindow)

    def _arrange(self) -> None:
        width = self._page._parent_canvas.winfo_width()
        is_wide = width <= 1 or width >= self.app.theme.scaled(THREE_COLUMNS)
        usual, returning = (self.demo, self.own, self.recent), (self.own, self.recent, self.demo)
        order: tuple[Card | None, ...] = usual if is_wide or not self.app.preferences.runs else returning
        cards = [card for card in order if card is not None]
        if self._layout == (layout := (is_wide, *cards)):
            return
        self._layout = layout
        for number, card in enumerate(cards):
            card.lift()  # for the Tab key, which goes from the back to the front
            row, column = (0, number) if is_wide else (number, 0)
            card.grid(row=row, column=column, sticky="nsew", padx=GAP, pady=GAP)
        for column, weight in enumerate(WEIGHTS if is_wide else (1, 0, 0)):
            self._page.grid_columnconfigure(column, weight=weight, uniform="cards" if weight else "")
