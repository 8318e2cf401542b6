"""A plot over the timesteps: how often each is trained, or how much it counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.files import config_from_values
from modules.ui.cards.CardCanvas import CardCanvas
from modules.ui.models.noise_preview import Bars, Schedule, read_schedule
from modules.ui.theme import Theme
from modules.ui.widgets.fitting import wrap_to

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.ui.App import App

HEIGHT = 72  # unscaled pixels
LOWEST = 0.01  # of the height, so that a rare timestep can be told from one that is never trained
SETTINGS = ("diffusion.", "loss.", "model.", "data.resolution", "data.frames", "denoiser.expert", "family", "method")


class BarCanvas(CardCanvas):
    """Bars of equal width. heights: from 0 to 1."""

    heights: Sequence[float] = ()

    def show(self, heights: Sequence[float]) -> None:
        self.heights = heights
        self.redraw()

    def contents(self) -> tuple:
        return tuple(self.heights)

    def draw(self) -> None:
        theme = self._app.theme
        width, height, count = self.winfo_width(), theme.scaled(HEIGHT), len(self.heights)
        self._set_height(height)
        for number, share in enumerate(self.heights):
            if share > 0:
                left, right = number * width // count, (number + 1) * width // count - 1
                top = height - 1 - max(share, LOWEST) * (height - 1)
                self.create_rectangle(left, top, right, height, fill=theme.now(theme.accent), width=0)
        self.create_line(0, height - 1, width, height - 1, fill=theme.now(theme.line))


class TimestepPlot(ctk.CTkFrame):
    """Bars from the clean image to noise alone, computed in the background. Hides its footer where there are none.

    compute: settings and schedule of the base model -> the bars. changed: called when the footer comes or goes.
    """

    def __init__(
        self,
        footer: ctk.CTkFrame,
        app: App,
        title: str,
        compute: Callable[[TrainConfig, Schedule | None], Bars | None],
        changed: Callable[[], None],
    ):
        super().__init__(footer, fg_color="transparent")
        self.app = app
        self._footer, self._compute, self._changed = footer, compute, changed
        self._wanted = 0  # the number of the newest computation
        self._add_label(title).pack(fill="x")
        self.canvas = BarCanvas(self, app)
        self.canvas.pack(fill="x", pady=(2, 0))
        ends = ctk.CTkFrame(self, fg_color="transparent")
        ends.pack(fill="x")
        self._add_label("0, the image", ends).pack(side="left")
        self._add_label("1000, noise alone", ends).pack(side="right")
        self.note = self._add_label("")
        self.note.pack(fill="x")
        wrap_to(self, self.note, app.theme, taken=4)
        self._view = app.views.add(self, self._refresh)
        self._refresh(None)

    def destroy(self) -> None:
        self._view.end()
        super().destroy()

    def _add_label(self, text: str, parent: ctk.CTkFrame | None = None) -> ctk.CTkLabel:
        font = self.app.theme.font(12)
        label = ctk.CTkLabel(parent or self, text=text, height=18, anchor="w", justify="left", font=font)
        label.configure(text_color=Theme.muted)
        return label

    def _refresh(self, paths: set[str] | None) -> None:
        if paths is not None and not any(path.startswith(SETTINGS) for path in paths):
            return
        self._wanted += 1
        number, config = self._wanted, config_from_values(self.app.settings.values)
        compute = self._compute
        self.app.in_background(
            lambda: compute(config, read_schedule(config.model.base)), lambda bars: self._take(number, bars)
        )

    def _take(self, number: int, bars: Bars | None) -> None:
        if number != self._wanted or not self.winfo_exists():
            return
        was_shown = bool(self._footer.winfo_manager())
        if bars is None:
            self._footer.grid_remove()
        else:
            self.note.configure(text=bars.note)
            self._footer.grid()
            self.canvas.show(bars.heights)
        if was_shown != (bars is not None):
            self._changed()
