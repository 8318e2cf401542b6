"""Fit texts and tables into the available width."""

from __future__ import annotations

import tkinter
from collections.abc import Callable, Mapping, Sequence
from tkinter import ttk
from typing import TYPE_CHECKING, Any

import customtkinter as ctk

if TYPE_CHECKING:
    from modules.ui.theme import Theme

NARROW_SHARE = 0.45
MIN_WRAP = 80  # unscaled pixels: narrower lines would break words
WRAP_SLACK = 8  # unscaled pixels: a text that filled its holder would widen it, and be wrapped again, for ever


def cut_text(text: str, width: int, measure: Callable[[str], int]) -> str:
    """As much of `text` as fits into `width` pixels, with an ellipsis if it is cut."""
    if measure(text) <= width:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if measure(text[:middle] + "…") <= width else (low, middle - 1)
    return text[:low] + "…"


def cut_middle(text: str, width: int, measure: Callable[[str], int]) -> str:
    """As much of both ends of `text` as fits into `width` pixels: names of runs of a grid differ in their ends."""
    if measure(text) <= width:
        return text

    def ends(num_letters: int) -> str:
        return f"{text[: (num_letters + 1) // 2]}…{text[len(text) - num_letters // 2 :]}"

    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if measure(ends(middle)) <= width else (low, middle - 1)
    return ends(low)


def wrap_to(holder: tkinter.Misc, label: ctk.CTkLabel, theme: Theme, taken: int = 24) -> None:
    """Wrap the label's text to the width of `holder`. taken: unscaled width used by other widgets."""

    def fit(width: int) -> None:
        width = max(MIN_WRAP, round(width / theme.scaled(100) * 100) - taken - WRAP_SLACK)
        if label.winfo_exists() and label.cget("wraplength") != width:
            label.configure(wraplength=width)

    def hear(event: tkinter.Event) -> None:
        if event.widget in (holder, getattr(holder, "_canvas", holder)):  # a window also gets events of its children
            fit(event.width)

    holder.bind("<Configure>", hear, add="+")
    fit(holder.winfo_width())  # 1 before it is laid out: from its shortest lines a text gets its width in one step


def fit_side_column(tab: ctk.CTkFrame, width: int, theme: Theme, give: Callable[[int], None]) -> None:
    """Call `give` with the unscaled width for a tab's side column: `width`, or less in a narrow window."""
    given = [0]

    def fit(event: tkinter.Event) -> None:
        share = int(min(width, NARROW_SHARE * event.width / theme.scaled(100) * 100))
        if share != given[0]:
            given[0] = share
            give(share)

    tab._canvas.bind("<Configure>", fit, add="+")


def fit_columns(
    table: ttk.Treeview, widths: Mapping[str, int], theme: Theme, stretched: str = ""
) -> Callable[[], None]:
    """Keep the columns of a table as wide as the table.

    widths: of the columns, unscaled; in a narrower table all shrink. stretched: the column that takes the surplus of a
    wider table; "": all do. Returns a function that updates the columns, to be called when the scale has changed.
    """

    def fit() -> None:
        room, total = table.winfo_width(), sum(map(theme.scaled, widths.values()))
        if room <= 1:
            return
        factor = room / total if room < total or not stretched else 1.0
        for name, width in widths.items():
            spare = room - total if name == stretched and factor == 1 else 0
            table.column(name, width=int(theme.scaled(width) * factor) + spare, minwidth=1, stretch=False, anchor="w")

    table.bind("<Configure>", lambda event: fit(), add="+")
    return fit


def lay_in_rows(
    frame: ctk.CTkFrame,
    widgets: Sequence[ctk.CTkBaseClass],
    theme: Theme,
    gap: int = 6,
    is_spare: Callable[[ctk.CTkBaseClass], bool] = lambda widget: False,
) -> Callable[[], None]:
    """Arrange the children of `frame` side by side, in as many rows as needed; it must have no other children.

    The frame's width has to be set from outside (sticky="ew", fill="x"). is_spare: whether a widget is hidden where not
    all of them fit into one row. Returns a function to be called when that has changed.
    """
    shown: list[Any] = []

    def arrange(event: object = None) -> None:
        width, space = frame.winfo_width(), theme.scaled(gap)
        sizes = [(widget.winfo_reqwidth(), widget.winfo_reqheight()) for widget in widgets]
        fits = sum(own_width + space for own_width, _ in sizes) - space <= width
        hidden = [not fits and is_spare(widget) for widget in widgets]
        if shown == [width, space, sizes, hidden] or width <= 1:
            return
        shown[:] = [width, space, sizes, hidden]
        x = y = row_height = 0
        for widget, (own_width, own_height), is_hidden in zip(widgets, sizes, hidden, strict=True):
            if is_hidden:
                tkinter.Place.place_forget(widget)
                continue
            if x and x + own_width > width:
                x, y, row_height = 0, y + row_height + space, 0
            # CustomTkinter's own would scale the pixels again.
            tkinter.Place.place_configure(widget, x=x, y=y)
            x, row_height = x + own_width + space, max(row_height, own_height)
        frame.configure(height=(y + row_height) / theme.scaled(100) * 100)

    height = max((widget.winfo_reqheight() for widget in widgets), default=1)
    frame.configure(width=1, height=height / theme.scaled(100) * 100)
    frame._canvas.bind("<Configure>", arrange, add="+")
    for widget in widgets:
        tkinter.Place.place_configure(widget, x=0, y=0)
        widget._canvas.bind("<Configure>", arrange, add="+")
    return arrange


class _Fitted(ctk.CTkBaseClass):
    """A CustomTkinter widget that shows as much of its text as fits; `is_cut` says whether it is cut off. `cget` still
    returns the full text."""

    is_cut = False
    _text_padding = 0  # unscaled pixels around the text

    def fit(self) -> None:
        label, text = self._inner_label(), self._whole_text()
        width = self.winfo_width()
        if label is None or width <= 1:
            return
        font = label.cget("font")
        room = width - self._apply_widget_scaling(self._text_padding)
        shown = cut_text(text, int(room), lambda part: int(self.tk.call("font", "measure", font, part)))
        self.is_cut = shown != text
        if label.cget("text") != shown:
            label.configure(text=shown)

    def _inner_label(self) -> tkinter.Label | None:
        return self._text_label

    def _whole_text(self) -> str:
        return self._text

    def _watch_width(self) -> None:
        self._canvas.bind("<Configure>", lambda event: self.fit(), add="+")


class _FittedText(_Fitted):
    """A fitted widget whose text is the option "text"."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._watch_width()

    def configure(self, *arguments, **options) -> None:
        super().configure(*arguments, **options)
        if "text" in options:
            self.fit()


class FittedButton(_FittedText, ctk.CTkButton):
    """Its width has to be set from outside (sticky="ew")."""

    _text_padding = 14


class FittedLabel(_FittedText, ctk.CTkLabel):
    """Its width has to be set from outside (sticky="ew")."""

    _text_padding = 4

    def _inner_label(self) -> tkinter.Label:
        return self._label


class FittedMenu(_Fitted, ctk.CTkOptionMenu):
    """An option menu of fixed width."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, dynamic_resizing=False, **options)
        self._text_padding = 16 + self.cget("height")  # the area of the arrow is a square
        self._watch_width()

    def set(self, value: str) -> None:
        super().set(value)
        self.fit()

    def _dropdown_callback(self, value: str) -> None:
        super()._dropdown_callback(value)
        if self.winfo_exists():
            self.fit()

    def _whole_text(self) -> str:
        return self._current_value
