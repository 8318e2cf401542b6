"""The filters of the dataset window: what is shown, with counts, a search, the order, and the size of thumbnails."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.ui.keyboard import focus_instead
from modules.ui.models.DatasetView import FILTERS, ORDERS, DatasetView, Where
from modules.ui.theme import Theme
from modules.ui.widgets.fitting import lay_in_rows
from modules.ui.widgets.Tooltip import Tooltip

if TYPE_CHECKING:
    from modules.ui.App import App

TYPING_MS = 150  # after the last key in the search
PLACES: dict[str, Where] = {"in captions": "caption", "as a tag": "tag", "in names": "name"}
RESIZE_HINT = "{} thumbnails (+ and - in the grid, or the wheel with Ctrl)."
UP, DOWN = "↑", "↓"


class DatasetBar(ctk.CTkFrame):
    """Changes what `view` shows. on_change: called when it has; on_resize: called with 1 for larger, -1 for smaller.

    on_masks: called when masks are to be shown over the images, as `shows_masks` says, or no longer.
    """

    def __init__(
        self,
        parent: tk.Misc,
        app: App,
        view: DatasetView,
        on_change: Callable[[], None],
        on_resize: Callable[[int], object],
        on_masks: Callable[[], None],
    ):
        super().__init__(parent, fg_color="transparent")
        self.app, self.view, self._on_change = app, view, on_change
        self._typing_job: str | None = None
        self._counts: dict[str, int] = {}
        self.grid_columnconfigure(0, weight=1)
        self._build_search(on_resize, on_masks)
        self._chips_row = ctk.CTkFrame(self, fg_color="transparent")
        self._chips_row.grid(row=1, column=0, sticky="ew", pady=(8, 0))
        self.chips = {name: self._make_chip(name) for name in FILTERS}
        self._lay_chips = lay_in_rows(
            self._chips_row,
            list(self.chips.values()),
            app.theme,
            is_spare=lambda chip: chip.cget("state") == "disabled",
        )
        self.show_counts(dict.fromkeys(FILTERS, 0))

    def show_counts(self, counts: dict[str, int]) -> None:
        """Write on each filter how many images pass it. In a narrow window, filters that none passes are hidden."""
        for name, count in counts.items():
            chip, text = self.chips[name], f"{FILTERS[name].label}  {count:,}"
            if chip.cget("text") != text:
                chip.configure(text=text)
            # one that nothing passes can't be chosen, unless it is the one in use
            is_idle = not count and name not in ("all", self.view.filter_name)
            state = "disabled" if is_idle else "normal"
            if chip.cget("state") != state:
                chip.configure(state=state)
        self._lay_chips()
        self._counts = counts

    def choose(self, name: str) -> None:
        """Use the filter of this name."""
        before, self.view.filter_name = self.view.filter_name, name
        for chip in {before, name}:
            self._colour(chip)
        self.show_counts(self._counts)
        self._tell()

    @property
    def shows_masks(self) -> bool:
        return bool(self._masks.get())

    def toggle_masks(self) -> None:
        self._masks.toggle()

    def focus_search(self) -> None:
        self.grid()  # it may be folded while an image is edited
        self.search.focus_set()
        self.search.select_range(0, "end")

    def focus_after_click(self, widget: tk.Misc) -> None:
        """Let a click on a filter focus this widget, such as the grid, so that its keys work at once."""
        for chip in self.chips.values():
            for part in (chip._canvas, chip._text_label):
                focus_instead(part, widget)

    def _tell(self) -> None:
        self.view.update()
        self._on_change()

    def _colour(self, name: str) -> None:
        is_chosen = name == self.view.filter_name
        self.chips[name].configure(
            fg_color=Theme.selected if is_chosen else Theme.control,
            hover_color=Theme.selected_hover if is_chosen else Theme.control_hover,
            text_color=Theme.on_accent if is_chosen else Theme.text,
        )

    def _make_chip(self, name: str) -> ctk.CTkButton:
        chip = ctk.CTkButton(
            self._chips_row, text=FILTERS[name].label, width=20, height=26, corner_radius=13,
            font=self.app.theme.font(12), command=lambda: self.choose(name),
        )  # fmt: skip
        Tooltip(chip, self.app.theme, lambda: FILTERS[name].hint)
        if name == "all":
            chip.configure(fg_color=Theme.selected, hover_color=Theme.selected_hover, text_color=Theme.on_accent)
        return chip

    def _build_search(self, on_resize: Callable[[int], object], on_masks: Callable[[], None]) -> None:
        theme, font = self.app.theme, self.app.theme.font()
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=0, column=0, sticky="ew")
        bar.grid_columnconfigure(0, weight=1)
        self.search = ctk.CTkEntry(bar, height=28, font=font, placeholder_text="Search (Ctrl+F)")
        self.search.grid(row=0, column=0, sticky="ew")
        self.search.bind("<KeyRelease>", lambda event: self._on_typed())
        self.search.bind("<Escape>", self._clear)
        self._where = ctk.CTkOptionMenu(bar, values=list(PLACES), width=116, font=font, command=self._look_in)
        self._where.grid(row=0, column=1, padx=(6, 0))
        ctk.CTkLabel(bar, text="Sort by", font=font, text_color=theme.muted).grid(row=0, column=2, padx=(12, 6))
        self._order = ctk.CTkOptionMenu(bar, values=list(ORDERS), width=120, font=font, command=self._sort)
        self._order.grid(row=0, column=3)
        self._direction = ctk.CTkButton(bar, text=UP, width=30, font=font, command=self._reverse)
        self._direction.grid(row=0, column=4, padx=(4, 0))
        Tooltip(self._direction, theme, lambda: "Reverse the order.")
        for column, (text, by, hint) in enumerate((("−", -1, "Smaller"), ("+", 1, "Larger"))):
            button = ctk.CTkButton(bar, text=text, width=30, font=font, command=partial(on_resize, by))
            button.grid(row=0, column=5 + column, padx=(12 if column == 0 else 4, 0))
            Tooltip(button, theme, partial(RESIZE_HINT.format, hint))
        self._masks = ctk.CTkSwitch(bar, text="Masks", width=20, font=font, command=on_masks)
        self._masks.grid(row=0, column=7, padx=(12, 0))
        Tooltip(self._masks, theme, lambda: "Color what masks let the training learn (O in the grid).")

    def _on_typed(self) -> None:
        if self._typing_job is not None:
            self.after_cancel(self._typing_job)
        self._typing_job = self.after(TYPING_MS, self._search)

    def _search(self) -> None:
        self._typing_job = None
        if self.search.get() != self.view.text:
            self.view.text = self.search.get()
            self._tell()

    def _clear(self, event: tk.Event) -> str | None:
        if not self.search.get():
            return None  # the window's Escape
        self.search.delete(0, "end")
        self._search()
        return "break"

    def _look_in(self, place: str) -> None:
        self.view.where = PLACES[place]
        if self.view.text.strip():
            self._tell()

    def _sort(self, order: str) -> None:
        self.view.order = next(one for one in ORDERS if one == order)
        self._tell()

    def _reverse(self) -> None:
        self.view.is_descending = not self.view.is_descending
        self._direction.configure(text=DOWN if self.view.is_descending else UP)
        self._tell()

    def destroy(self) -> None:
        if self._typing_job is not None:
            self.after_cancel(self._typing_job)
        super().destroy()
