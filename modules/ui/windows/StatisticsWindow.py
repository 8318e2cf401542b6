"""The figures of a dataset as plots: shapes, buckets, captions. A click on a bar shows its images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.errors import UserError
from modules.config.labels import with_labels
from modules.config.visible_text import visible_line, visible_text
from modules.ui.cards.BarChart import BarChart
from modules.ui.cards.Card import Card
from modules.ui.models.DatasetView import ALL, concept_names
from modules.ui.models.figure_charts import Chart, charts_of, summary_of
from modules.ui.models.FiguresReading import FiguresReading, KnownFigures
from modules.ui.models.typed_text import WRONG_SETTING
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import bring_up, set_size, show_over
from modules.ui.widgets.fitting import wrap_to
from modules.ui.widgets.Page import Page

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.ui.App import App

POLL_SECONDS = 0.3
TYPING_MS = 1000  # after the last change of a setting
TWO_COLUMNS = 760  # unscaled pixels, from which on charts stand side by side
LEFT = ("aspects", "buckets", "tags")  # the others are in the right column
UNCHANGED_BY = ("sampling", "backup", "logging")  # settings without an effect on the figures

Pick = Callable[[int | None, Sequence[str], str], object]
"""Shows images: the number of their concept or None for all, their paths, and what they have in common."""


class StatisticsWindow(ctk.CTkToplevel):
    """Closing only hides the window, because CustomTkinter never frees one completely. F5 reads everything again."""

    def __init__(self, app: App, on_pick: Pick):
        super().__init__(app.root, fg_color=app.theme.page)
        self.app, self._on_pick = app, on_pick
        self.number: int | None = None
        self.charts: dict[str, BarChart] = {}
        self.reading: FiguresReading | None = None
        self._cards: dict[str, tuple[Card, ctk.CTkLabel, ctk.CTkLabel]] = {}  # with the note and what is not drawn
        self._shown: KnownFigures | None = None
        self._is_open, self._num_columns = False, 0
        self._job: str | None = None
        self.title("Statistics")
        set_size(self, "1000x760", (420, 320))
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(1, weight=1)
        self._build_head()
        self._page = Page(self)
        self._page.grid(row=1, column=0, sticky="nsew", padx=(8, 2), pady=(0, 8))
        self._columns = [ctk.CTkFrame(self._page, fg_color="transparent") for _ in range(2)]
        for column in self._columns:
            column.grid_columnconfigure(0, weight=1)
        self._page._parent_canvas.bind("<Configure>", lambda event: self._lay_columns(event.width), add="+")
        self._lay_columns(1000)
        self._ends = [app.every(POLL_SECONDS, self._follow), app.settings.subscribe(self._on_settings)]
        self.bind("<Escape>", lambda event: self.hide())
        self.bind("<F5>", lambda event: self.read())
        self.protocol("WM_DELETE_WINDOW", self.hide)
        show_over(app, self)

    # --- public methods ----------------------------------------------------------------------------------------------

    def show(self, number: int | None) -> None:
        """Show the figures of `concepts.<number>`; None: of all that are enabled."""
        is_new = number != self.number or not self._is_open
        self.number, self._is_open = number, True
        bring_up(self)
        self.focus_set()
        if is_new:
            self.read()

    def hide(self) -> None:
        self._cancel()
        self._is_open = False
        self.withdraw()

    def read(self) -> None:
        """Read the figures again."""
        self._cancel()
        config = self.app.settings.config()
        if config is None:
            self._tell(WRONG_SETTING, is_wrong=True)
            return
        if self.number is not None and self.number >= len(config.concepts):
            self.hide()
            return
        name = ALL if self.number is None else concept_names(config.concepts)[self.number]
        self.title(f"Statistics: {name}")
        reading = self.reading = FiguresReading(config, self.number, *self._ranks(config))
        self._tell("Looking at the images…")
        self.bar.start()
        self.bar.grid()
        self.app.in_background(reading.run, lambda _: self._end(reading, ""), lambda error: self._fail(reading, error))

    # --- reading -----------------------------------------------------------------------------------------------------

    def _ranks(self, config: TrainConfig) -> tuple[int, bool]:
        """How many there are, and whether on GPUs."""
        shape = self.app.devices.shape(config)  # unknown while the GPUs are unknown or can't train these settings
        return (shape.num_ranks, bool(shape.gpus)) if shape else (1, True)

    def _follow(self) -> None:
        """Show what was read meanwhile."""
        known = self.reading.known if self.reading is not None else None
        if known is None or known is self._shown:
            return
        self._shown = known
        text = summary_of(known)
        self._tell(f"{text} {known.reading}…" if known.reading else text)
        self._show(charts_of(known))

    def _end(self, reading: FiguresReading, failure: str) -> None:
        if reading is not self.reading:
            return
        self._follow()
        self.bar.stop()
        self.bar.grid_remove()
        if failure:
            self._tell(failure, is_wrong=True)
            self._show([])

    def _fail(self, reading: FiguresReading, error: Exception) -> None:
        self._end(reading, str(error) if isinstance(error, UserError) else "The figures can't be read.")
        if not isinstance(error, UserError):
            raise error

    def _cancel(self) -> None:
        if self._job is not None:
            self.after_cancel(self._job)
            self._job = None
        if self.reading is not None:
            self.reading.cancel()
            self.reading = None
        self.bar.stop()
        self.bar.grid_remove()

    def _on_settings(self, paths: set[str]) -> None:
        if self._is_open and any(not path.startswith(UNCHANGED_BY) for path in paths):
            if self._job is not None:
                self.after_cancel(self._job)
            self._job = self.after(TYPING_MS, self.read)

    # --- display -----------------------------------------------------------------------------------------------------

    def _show(self, charts: Sequence[Chart]) -> None:
        rows = [0, 0]
        for chart in charts:
            column = 0 if chart.figure in LEFT else 1
            if chart.figure not in self._cards:
                self._add_card(chart.figure, self._columns[column])
            card, note, more = self._cards[chart.figure]
            card.show_title(chart.title)
            for label, text in ((note, chart.note), (more, chart.more)):
                label.configure(text=text)
                (label.grid if text else label.grid_remove)()
            self.charts[chart.figure].show(chart)
            card.grid(row=rows[column], column=0, sticky="ew", padx=4, pady=(0, 8))
            rows[column] += 1
        shown = {chart.figure for chart in charts}
        for figure, (card, _, _) in self._cards.items():
            if figure not in shown:
                card.grid_remove()

    def _add_card(self, figure: str, column: ctk.CTkFrame) -> None:
        card = Card(column, self.app, "")
        note, more = card.add_note(1), card.add_note(3)
        chart = BarChart(card, self.app, lambda label: self.pick(figure, label))
        chart.grid(row=2, column=0, sticky="ew", padx=8, pady=2)
        self.charts[figure], self._cards[figure] = chart, (card, note, more)

    def pick(self, figure: str, label: str) -> None:
        """Show the images that a bar counts."""
        if self.reading is None:
            return
        for name, chart in self.charts.items():
            chart.show_picked(label if name == figure else "")
        paths = self.reading.paths(figure, label)
        shown = self.charts[figure].chart
        title = shown.title if shown else figure
        self._on_pick(self.number, paths, f"{title}: {visible_line(label)}")

    def _lay_columns(self, width: int) -> None:
        """Place the columns side by side, or one below the other in a narrow window. width: in screen pixels."""
        num_columns = 2 if width >= self.app.theme.scaled(TWO_COLUMNS) else 1
        if num_columns == self._num_columns:
            return
        self._num_columns = num_columns
        for number, column in enumerate(self._columns):
            row, place = (0, number) if num_columns == 2 else (number, 0)
            column.grid(row=row, column=place, sticky="new")
        self._page.grid_columnconfigure(0, weight=1, uniform="charts" if num_columns == 2 else "")
        self._page.grid_columnconfigure(1, weight=num_columns - 1, uniform="charts" if num_columns == 2 else "")

    def _tell(self, text: str, is_wrong: bool = False) -> None:
        text = visible_text(with_labels(text))[:500]
        self.state_label.configure(text=text, text_color=Theme.error if is_wrong else Theme.text)

    def _build_head(self) -> None:
        head = ctk.CTkFrame(self, fg_color="transparent")
        head.grid(row=0, column=0, sticky="ew", padx=12, pady=(12, 8))
        head.grid_columnconfigure(0, weight=1)
        font = self.app.theme.font()
        self.state_label = ctk.CTkLabel(head, text="", font=font, anchor="w", justify="left")
        self.state_label.grid(row=0, column=0, sticky="ew")
        wrap_to(head, self.state_label, self.app.theme, taken=100)
        ctk.CTkButton(head, text="Refresh", width=80, font=font, command=self.read).grid(row=0, column=1, sticky="ne")
        hint = "Click a bar to see its images in the dataset window."
        label = ctk.CTkLabel(head, text=hint, font=self.app.theme.font(12), text_color=Theme.muted, anchor="w")
        label.grid(row=1, column=0, sticky="w")
        self.bar = ctk.CTkProgressBar(head, height=6, mode="indeterminate")
        self.bar.grid(row=2, column=0, columnspan=2, sticky="ew", pady=(4, 0))
        self.bar.grid_remove()

    def destroy(self) -> None:
        self._cancel()
        for end in self._ends:
            end()
        super().destroy()
