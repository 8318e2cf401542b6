"""A window with a table to choose from and a search field."""

from __future__ import annotations

import tkinter
from collections.abc import Callable, Sequence
from tkinter import ttk
from typing import TYPE_CHECKING, Literal

import customtkinter as ctk

from modules.config.visible_text import visible_line
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import focus_soon, set_size, show_over
from modules.ui.widgets.fitting import fit_columns
from modules.ui.widgets.scrolling import make_scrollbar

if TYPE_CHECKING:
    from modules.ui.App import App

GRID_COLUMNS = 4  # subclasses may add filters beside the search, and a row below the table

Row = tuple[str, tuple[str, ...]]
"""The name of a row, which is passed to the actions, and its cells."""


class TableWindow(ctk.CTkToplevel):
    """rows: shown if they contain every word of the search.

    columns: title -> width in pixels. actions: (button text, function called with the names of the selected rows);
    Return and a double click run the first one. many: whether several rows can be selected. size, min_size: in unscaled
    pixels. current: the name of the row to select at first, if it is there; else it is the first row. lasting: the
    functions of `actions` that leave the window open.
    """

    def __init__(
        self,
        app: App,
        title: str,
        columns: dict[str, int],
        rows: Sequence[Row],
        actions: Sequence[tuple[str, Callable[[list[str]], None]]],
        many: bool = False,
        size: str = "760x460",
        min_size: tuple[int, int] = (480, 320),
        current: str = "",
        lasting: Sequence[Callable[[list[str]], None]] = (),
    ):
        super().__init__(app.root)
        self._current, self._by_default = current, ""  # the row that was selected here, not by the user
        self.app, self._rows, self._actions, self._lasting = app, list(rows), list(actions), lasting
        self.title(title)
        self.transient(app.root)
        set_size(self, size, min_size)
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(1, weight=1)
        self.search = ctk.CTkEntry(self, placeholder_text="Search", font=app.theme.font())
        self.search.grid(row=0, column=0, sticky="ew", padx=14, pady=(14, 8))
        self.table = self._make_table(columns, many)
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=3, column=0, columnspan=GRID_COLUMNS, sticky="e", padx=14, pady=(8, 14))
        for number, (text, action) in enumerate(self._actions):
            colours = {"fg_color": Theme.selected, "hover_color": Theme.selected_hover, "text_color": Theme.on_accent}
            button = ctk.CTkButton(bar, text=text, font=app.theme.font(), command=lambda a=action: self._act(a))
            button.configure(**(colours if number == 0 else {}))
            button.grid(row=0, column=len(self._actions) - number, padx=(8, 0))
        ctk.CTkButton(bar, text="Close", font=app.theme.font(), command=self.destroy).grid(row=0, column=0)
        self._bind_keys()
        self.show_rows()
        show_over(app, self)
        focus_soon(app, self.search)

    def show_rows(self, event: object = None) -> None:
        """Show the rows that match the search."""
        words = self.search.get().lower().split()
        self.table.delete(*self.table.get_children())
        for name, cells in self._rows:
            text = " ".join((name, *cells)).lower()
            if all(word in text for word in words):
                self.table.insert("", "end", iid=name, values=list(map(visible_line, cells)))
        if found := self.table.get_children():
            self._by_default = self._current if not words and self._current in found else found[0]
            self._select((self._by_default,))

    def take_rows(self, rows: Sequence[Row]) -> None:
        """Replace the rows, keeping the selection; the current row, if it is new, replaces one selected by default."""
        chosen = self.table.selection()
        had_current, was_by_default = self.table.exists(self._current), chosen == (self._by_default,)
        self._rows = list(rows)
        self.show_rows()
        current_is_new = self.table.exists(self._current) and not had_current
        still = [name for name in chosen if self.table.exists(name)]
        if still and not (current_is_new and was_by_default):
            self._select(still)

    def _select(self, names: Sequence[str]) -> None:
        self.table.selection_set(*names)
        self.table.focus(names[0])
        self.table.see(names[0])

    def _make_table(self, columns: dict[str, int], many: bool) -> ttk.Treeview:
        frame = ctk.CTkFrame(self, fg_color=Theme.card)
        frame.grid(row=1, column=0, columnspan=GRID_COLUMNS, sticky="nsew", padx=14)
        frame.grid_columnconfigure(0, weight=1)
        frame.grid_rowconfigure(0, weight=1)
        mode: Literal["extended", "browse"] = "extended" if many else "browse"
        table = ttk.Treeview(frame, columns=list(columns), show="headings", selectmode=mode)
        make_scrollbar(frame, table, row=0, column=1)
        for title in columns:
            table.heading(title, text=title, anchor="w")
        fit_columns(table, columns, self.app.theme)
        table.grid(row=0, column=0, sticky="nsew", padx=(6, 0), pady=6)
        return table

    def _bind_keys(self) -> None:
        first = self._actions[0][1]
        self.search.bind("<KeyRelease>", self._typed)
        self.search.bind("<Return>", lambda event: self._act(first))
        self.search.bind("<Down>", lambda event: self.table.focus_set())
        self.table.bind("<Return>", lambda event: self._act(first))
        self.table.bind("<Double-1>", lambda event: self._act(first))
        self.bind("<Escape>", lambda event: self.destroy())

    def _typed(self, event: tkinter.Event) -> None:
        if event.keysym not in ("Return", "Down", "Up", "Escape"):
            self.show_rows()

    def _act(self, action: Callable[[list[str]], None]) -> None:
        chosen = list(self.table.selection())
        if chosen:
            if action not in self._lasting:
                self.destroy()
            action(chosen)
