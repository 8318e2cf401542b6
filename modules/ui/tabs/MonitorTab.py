"""The monitor tab: the run that the window follows, at a glance."""

from __future__ import annotations

import tkinter
from collections.abc import Generator
from typing import TYPE_CHECKING

from modules.ui.cards.Card import Card
from modules.ui.cards.ProgressCard import ProgressCard
from modules.ui.cards.RankBars import RankBars
from modules.ui.cards.ResultCard import ResultCard
from modules.ui.cards.SamplesCard import SamplesCard
from modules.ui.cards.TryCard import TryCard
from modules.ui.models.run_text import describe_ranks, wait_advice
from modules.ui.tabs.SlicedTab import SlicedTab
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import open_window
from modules.ui.widgets.LogPane import LogPane
from modules.ui.widgets.LossChart import LossChart
from modules.ui.widgets.Page import Page
from modules.ui.windows.CrashReportWindow import CrashReportWindow

if TYPE_CHECKING:
    from modules.ui.App import App
    from modules.ui.models.RunState import RunState

USAGE_SECONDS = 1.0
TWO_COLUMNS = 940  # minimum width, unscaled
# heights of rows, unscaled; UPPER: with the progress, TRY: with images to try
MIN_CHART, UPPER, SAMPLES, TRY, MIN_LOG, LOG = 250, 284, 196, 420, 100, 150
GAP = 6
SPARE = 2  # of the height, so that the page never needs a scrollbar by a pixel
HEIGHT_STEP = 16  # screen pixels


class MonitorTab(SlicedTab):
    """Loss, samples and log on the left; progress and ranks on the right, or all below each other if it is narrow."""

    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, app)
        self._is_reading = False
        self._has_ended = False
        self._end_steps: Generator[None, None, None] | None = None
        self._layout: tuple | None = None
        self._page = Page(self)
        self._page.pack(fill="both", expand=True)
        self.chart: LossChart | None = None
        self.progress: ProgressCard | None = None
        self.samples: SamplesCard | None = None
        self.ranks: Card | None = None
        self.log: LogPane | None = None
        self.result: ResultCard | None = None
        self.trying: TryCard | None = None
        app.in_slices(self._steps)

    def destroy(self) -> None:
        if self._end_steps is not None:
            self._end_steps.close()
        super().destroy()

    def _build(self) -> Generator[None, None, None]:
        """Build the cards one at a time, so that opening the tab never stalls the window."""
        self._page._parent_canvas.bind("<Configure>", lambda event: self._arrange(), add="+")
        self.chart = LossChart(self._page, self.app)
        self._arrange()
        yield
        self.progress = ProgressCard(self._page, self.app)
        self._arrange()
        yield
        self.samples = SamplesCard(self._page, self.app)
        self._arrange()
        yield
        self._build_ranks()
        self._arrange()
        yield
        self.log = LogPane(self._page, self.app)
        self._arrange()
        yield
        self._ends = [self.app.run.subscribe(self._on_run), self.app.every(USAGE_SECONDS, self._poll_usage)]
        self._on_run(self.app.run.state)

    def _build_ranks(self) -> None:
        self.ranks = Card(self._page, self.app, "Ranks")
        self.bars = RankBars(self.ranks, self.app)
        self.bars.grid(row=1, column=0, sticky="ew", padx=2)
        self._advice = self.ranks.add_note(2, Theme.warning)
        self._advice.grid_remove()

    def _on_run(self, state: RunState) -> None:
        self.bars.show(state.ranks, self.app.devices)
        assert self.ranks is not None  # since runs are followed
        self.ranks.show_title(f"Ranks: {describe_ranks(state.ranks)}" if state.ranks else "Ranks")
        advice = wait_advice(state.ranks) if state.is_running else ""
        if self._advice.cget("text") != advice:
            self._advice.configure(text=advice)
            self._advice.grid() if advice else self._advice.grid_remove()
        self._show_end(state)

    def _show_end(self, state: RunState) -> None:
        """Once a run has ended, its result takes the place of its progress, and trying its model that of the ranks."""
        self._has_ended = state.exit is not None and not state.is_running
        if self._has_ended and self.result is None:
            if self._end_steps is None:
                self._end_steps = self._build_end()
                self.app.in_slices(self._end_steps)
            return
        if self._has_ended and self.result is not None and self.trying is not None:
            self.result.show(state)
            if state.saved:
                self.trying.show(state)
        self._arrange()

    def _build_end(self) -> Generator[None, None, None]:
        def show_report() -> None:
            open_window(self.app, CrashReportWindow, self.app.run.state.folder)

        result = ResultCard(self._page, self.app, show_report)
        yield
        self.trying = TryCard(self._page, self.app)
        self.result = result
        result.bind("<Configure>", lambda event: self._arrange(), add="+")  # it may say more than before
        yield
        self._show_end(self.app.run.state)

    def _poll_usage(self) -> None:
        """Ask the driver how busy the GPUs are, while somebody looks."""
        state, devices = self.app.run.state, self.app.devices
        if self._is_reading or not devices.gpus or not state.is_running or not self.winfo_viewable():
            return
        self._is_reading = True

        def take(usage: list) -> None:
            self._is_reading = False
            if self.winfo_exists():
                devices.take_usage(usage)
                self.bars.show(self.app.run.state.ranks, devices)

        def fail(error: Exception) -> None:
            self._is_reading = False
            raise error

        self.app.in_background(devices.read_usage(), take, fail)

    def _arrange(self) -> None:
        """Put the existing cards into two columns or one, with heights that fill the page."""
        canvas, scaled = self._page._parent_canvas, self.app.theme.scaled
        width = canvas.winfo_width()
        height = canvas.winfo_height() // HEIGHT_STEP * HEIGHT_STEP  # a scrollbar's coming and going changes nothing
        count = 2 if width <= 1 or width >= scaled(TWO_COLUMNS) else 1
        shows_end = self._has_ended and self.result is not None
        first = self.result if shows_end else self.progress
        second = self.trying if shows_end and self.app.run.state.saved else self.ranks
        cards = (first, self.chart, self.samples, second, self.log)
        top = self.result.winfo_reqheight() if self.result is not None and first is self.result else 0
        if self._layout == (layout := (count, height, cards, top)):
            return
        self._layout = layout
        for card in (self.progress, self.ranks, self.result, self.trying):
            if card is not None and card not in cards:
                card.grid_remove()
        shows_try = count == 2 and second is not None and second is self.trying
        if shows_try:
            self._arrange_end(height)
            return
        places = ((0, 1), (0, 0), (1, 0), (1, 1)) if count == 2 else ((0, 0), (1, 0), (2, 0), (3, 0))
        order = [(card, *place) for card, place in zip(cards, places, strict=False) if card is not None]
        for card, row, column in order:
            card.grid(row=row, column=column, rowspan=1, columnspan=1, sticky="nsew", padx=GAP, pady=GAP)
        if self.log is not None:
            self.log.grid(row=4, column=0, columnspan=count, sticky="nsew", padx=GAP, pady=GAP)
        self._divide(count)
        upper, lower = (UPPER if count == 2 else MIN_CHART), SAMPLES
        free = height / scaled(100) * 100 - lower - 2 * GAP - SPARE  # for the chart and the log
        log = min(LOG, max(MIN_LOG, free - upper))
        heights = {self.chart: max(upper, free - log), self.samples: lower}
        rows = {row: heights[card] for card, row, column in order if column == 0 and card in heights}
        for row in range(4):
            self._page.grid_rowconfigure(row, minsize=scaled(rows.get(row, 0)), weight=0)
        if self.log is not None:
            self.log.configure(height=log)
            self.log.grid_propagate(False)

    def _divide(self, count: int) -> None:
        """Into one or two columns."""
        self._page.grid_columnconfigure(0, weight=13, uniform="cards" if count == 2 else "")
        self._page.grid_columnconfigure(1, weight=7 if count == 2 else 0, uniform="cards" if count == 2 else "")

    def _arrange_end(self, height: int) -> None:
        """The result is as high as what it says, and trying the model takes all the height below it; beside them are
        the chart, which ends lower than the result, and the samples.

        height: of the page, in screen pixels.
        """
        scaled, gap = self.app.theme.scaled, 2 * self.app.theme.scaled(GAP)
        assert self.result is not None  # the run has ended
        places = ((self.result, 0, 1, 1), (self.trying, 1, 2, 1), (self.chart, 0, 2, 0), (self.samples, 2, 1, 0))
        for card, row, rows, column in places:
            if card is not None:
                card.grid(row=row, rowspan=rows, column=column, columnspan=1, sticky="nsew", padx=GAP, pady=GAP)
        top, trying = self.result.winfo_reqheight() + gap, scaled(TRY) + gap
        samples = scaled(SAMPLES) + gap
        log = scaled(MIN_LOG) + gap
        upper = max(scaled(UPPER) + gap, top + trying - samples, height - samples - log - SPARE)
        for row, size in enumerate((top, upper - top, samples, 0)):
            self._page.grid_rowconfigure(row, minsize=size, weight=int(row == 1))
        self._divide(2)
        if self.log is not None:
            self.log.grid(row=4, column=0, columnspan=2, sticky="nsew", padx=GAP, pady=GAP)
            self.log.configure(height=MIN_LOG)
            self.log.grid_propagate(False)
