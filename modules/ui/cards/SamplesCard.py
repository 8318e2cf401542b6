"""The samples of one step of the run, the newest unless the user looks back."""

from __future__ import annotations

import tkinter
from collections.abc import Callable
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.prompt_words import without_common_start
from modules.ui.cards.Card import Card
from modules.ui.models.SampleTable import SampleTable, arrange_samples
from modules.ui.theme import Theme
from modules.ui.widgets.PictureCanvas import PictureCanvas

if TYPE_CHECKING:
    from modules.ui.App import App

UPDATE_SECONDS = 0.5
MIN_SIDE, MAX_SIDE, GAP, TITLE_HEIGHT, SCROLLBAR = 72, 192, 6, 18, 20


class SamplesCard(Card):
    """A row of images with a slider over the steps."""

    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, app, "Samples")
        self.table = SampleTable((), (), {})
        self._known: tuple | None = None
        self._step: int | None = None  # chosen by the user; None: the newest
        self.grid_rowconfigure(1, weight=1)
        more = ctk.CTkButton(self, text="All steps…", width=20, height=26, font=app.theme.font(12))
        more.configure(command=lambda: app.open_tab("sampling"))
        more.grid(row=0, column=0, sticky="e", padx=12, pady=(8, 2))
        self.strip = SampleStrip(self, app)
        self.strip.grid(row=1, column=0, sticky="nsew", padx=8)
        self.slider = ctk.CTkSlider(self, height=16, from_=0, to=1, number_of_steps=1, command=self._look_back)
        self.slider.grid(row=2, column=0, sticky="ew", padx=12, pady=(2, 4))
        self._stop_updating: Callable[[], None] = app.every(UPDATE_SECONDS, self.update_samples)
        self.update_samples()

    def destroy(self) -> None:
        self._stop_updating()
        super().destroy()

    @property
    def shown_step(self) -> int | None:
        """The step whose samples are shown; None if there are none."""
        if self._step in self.table.steps:
            return self._step
        return self.table.steps[-1] if self.table.steps else None

    def update_samples(self) -> None:
        """Show new samples."""
        state = self.app.run.state
        known = state.folder, len(state.samples), state.samples[-1] if state.samples else None
        if known == self._known:
            return
        if self._known is None or known[0] != self._known[0] or known[1] < self._known[1]:
            self._step = None
        self._known = known
        self.table = arrange_samples(state.samples)
        last = len(self.table.steps) - 1
        if last > 0:
            self.slider.configure(to=last, number_of_steps=last)
            self.slider.set(self.table.steps.index(self.shown_step))
            self.slider.grid()
        else:
            self.slider.grid_remove()
        self._show()

    def _look_back(self, place: float) -> None:
        number = round(place)
        is_newest = number == len(self.table.steps) - 1
        step = None if is_newest else self.table.steps[number]
        if step != self._step:
            self._step = step
            self._show()

    def _show(self) -> None:
        step = self.shown_step
        paths = {row: path for (row, of_step), path in self.table.paths.items() if of_step == step}
        rows = [row for row in self.table.rows if row in paths]
        titles = without_common_start([row.title for row in rows])  # there is space for a few letters
        self.strip.show([(title, paths[row]) for title, row in zip(titles, rows, strict=True)])
        folder = self.app.run.state.folder
        of_run = f"Samples of {folder.name}" if folder else "Samples"
        self.show_title(of_run if step is None else f"{of_run}, step {step:,}")


class SampleStrip(PictureCanvas):
    """Images in one row with their titles below."""

    def __init__(self, parent: tkinter.Misc, app: App):
        self.samples: list[tuple[str, str]] = []
        self.nothing = "No samples yet. They appear here as the run makes them."
        super().__init__(parent, app)

    def show(self, samples: list[tuple[str, str]]) -> None:
        """samples: (title, path)."""
        self.samples = samples
        self.show_count(len(samples))

    def empty_text(self) -> str:
        return self.nothing

    def num_columns(self) -> int:
        return max(1, len(self.samples))

    def cell_size(self) -> tuple[int, int]:
        side, gap = self._side(), self.app.theme.scaled(GAP)
        return side + gap, side + gap + self.app.theme.scaled(TITLE_HEIGHT)

    def draw_cell(self, number: int, x: int, y: int) -> None:
        title, path = self.samples[number]
        side, gap = self._side(), self.app.theme.scaled(GAP) // 2
        self.draw_picture(path, x + gap, y + gap, side, side)
        self.draw_choice(number, x + gap - 1, y + gap - 1, side + 1, side + 1)
        self.draw_text(x + gap, y + gap + side + 2, title, side, size=11, colour=Theme.muted)

    def _side(self) -> int:
        """The side of an image in screen pixels: as large as the height allows."""
        scaled = self.app.theme.scaled
        free = self.winfo_height() - scaled(SCROLLBAR + TITLE_HEIGHT + GAP)  # whether the scrollbar is there or not
        return min(max(free, scaled(MIN_SIDE)), scaled(MAX_SIDE))
