"""A window that makes entries of the queue for every combination of some settings' values."""

from __future__ import annotations

import tkinter
from functools import partial
from pathlib import Path
from tkinter import ttk
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.counted import counted
from modules.config.describe import settings_by_path
from modules.config.errors import UserError
from modules.config.explain import generic_path
from modules.config.labels import label_of
from modules.config.visible_text import visible_line
from modules.queue.grid import Axis, GridRun, count_text, grid_entries, make_axis, make_grid
from modules.queue.processes import continue_queue
from modules.ui.models.find_settings import find_settings, prepare_search
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import focus_soon, set_size, show_over
from modules.ui.widgets.fitting import fit_columns
from modules.ui.widgets.scrolling import make_scrollbar

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.queue.TrainingQueue import TrainingQueue
    from modules.ui.App import App

FIRST_PATHS = ("lora.rank", "optimizer.learning_rate", "seed", "")
VALUE_HINTS = ("8, 16, 32", "1e-4, 2e-4", "1, 2", "values, with commas")
TYPING_MS = 300


class GridWindow(ctk.CTkToplevel):
    """config: the settings that all runs share."""

    def __init__(self, app: App, config: TrainConfig):
        super().__init__(app.root)
        self.app, self._config = app, config
        self.runs: list[GridRun] = []
        self._is_making = self._is_stale = False
        self._timer = ""
        self.title("Grid of runs")
        self.transient(app.root)
        set_size(self, "760x560", (520, 420))
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(2, weight=1)
        self._build_fields()
        self._build_preview()
        self._build_buttons()
        self.bind("<Escape>", lambda event: self.destroy())
        show_over(app, self)
        focus_soon(app, self.fields[0][1])
        app.in_background(prepare_search, lambda nothing: None)
        self._make()

    def add(self) -> None:
        """Add the runs to the queue."""
        if not self.runs:
            return
        entries = grid_entries(self.runs, self.name.get().strip() or self._default_name())
        self.app.queue.do(partial(_add, entries), self._tell)
        self.destroy()

    def axes(self) -> list[Axis]:
        """The settings that have values. Raises UserError."""
        rows = [(path.get().strip(), values.get().strip()) for path, values, _ in self.fields]
        return [make_axis(setting_called(path), values) for path, values in rows if path and values]

    def _tell(self, number: int) -> None:
        queue = self.app.queue
        is_on = queue.view.is_on
        then = "They start in their order." if is_on else "Start the queue on the Queue tab."
        text = f"Added {counted(number, 'run')} to the queue. {then}"
        self.app.show_message(text, "info", lambda: queue.view.is_on == is_on)

    def _default_name(self) -> str:
        return Path(self._config.workspace_dir).name

    # --- the preview --------------------------------------------------------------------------------------------------

    def _typed(self, event: tkinter.Event | None = None) -> None:
        if self._timer:
            self.after_cancel(self._timer)
        self._timer = self.after(TYPING_MS, self._make)

    def _make(self) -> None:
        """Make the runs in a thread, as many take seconds; while that is done, remember that something has changed."""
        self._timer = ""
        for path, _, label in self.fields:
            typed = path.get().strip()
            label.configure(text=label_of(setting_called(typed)) if typed else "any other setting")
        if self._is_making:
            self._is_stale = True
            return
        try:
            axes = self.axes()
        except UserError as error:
            self._show([], str(error))
            return
        if not axes:
            self._show([], "Write the values of at least one setting, with commas.", is_error=False)
            return
        self._is_making, config = True, self._config
        self.app.in_background(
            lambda: make_grid(config, axes), lambda runs: self._made(runs, count_text(axes)), self._refused
        )

    def _made(self, runs: list[GridRun], text: str) -> None:
        self._is_making = False
        if self.winfo_exists():
            self._show(runs, text, is_error=False)
            self._make_again()

    def _refused(self, error: Exception) -> None:
        self._is_making = False
        if not isinstance(error, UserError):
            raise error
        if self.winfo_exists():
            self._show([], str(error))
            self._make_again()

    def _make_again(self) -> None:
        if self._is_stale:
            self._is_stale = False
            self._make()

    def _show(self, runs: list[GridRun], text: str, is_error: bool = True) -> None:
        self.runs = runs
        self.note.configure(text=text, text_color=Theme.error if is_error else Theme.text)
        name = self.name.get().strip() or self._default_name()
        self.table.delete(*self.table.get_children())
        for number, run in enumerate(runs, 1):
            cells = (number, f"{name} {run.name}", Path(run.config.workspace_dir).name)
            self.table.insert("", "end", values=tuple(visible_line(str(cell)) for cell in cells))
        state, colour = ("normal", Theme.selected) if runs else ("disabled", Theme.control)
        text = f"Add {counted(len(runs), 'run')}" if runs else "Add"
        self.button.configure(text=text, state=state, fg_color=colour)

    # --- widgets ------------------------------------------------------------------------------------------------------

    def _build_fields(self) -> None:
        theme, frame = self.app.theme, ctk.CTkFrame(self, fg_color=Theme.card)
        frame.grid(row=0, column=0, sticky="ew", padx=14, pady=(14, 8))
        frame.grid_columnconfigure(1, weight=1)
        titles = ("Setting", "Values")
        for column, title in enumerate(titles):
            label = ctk.CTkLabel(frame, text=title, font=theme.font(12), text_color=Theme.muted, anchor="w")
            label.grid(row=0, column=column, sticky="w", padx=0 if column else 10, pady=(6, 0))
        self.fields: list[tuple[ctk.CTkEntry, ctk.CTkEntry, ctk.CTkLabel]] = []
        for number, (first, hint) in enumerate(zip(FIRST_PATHS, VALUE_HINTS, strict=True), 1):
            path = ctk.CTkEntry(frame, width=190, font=theme.font(), placeholder_text="such as Batch size")
            path.grid(row=number, column=0, padx=10, pady=3)
            if first:
                path.insert(0, first)
            values = ctk.CTkEntry(frame, font=theme.font(), placeholder_text=hint)
            values.grid(row=number, column=1, sticky="ew", pady=3)
            label = ctk.CTkLabel(frame, text="", width=150, font=theme.font(12), text_color=Theme.muted, anchor="w")
            label.grid(row=number, column=2, sticky="w", padx=10)
            self.fields.append((path, values, label))
            for entry in (path, values):
                entry.bind("<KeyRelease>", self._typed)
                entry.bind("<Return>", lambda event: self._make())
        label = ctk.CTkLabel(frame, text="Names begin with", font=theme.font(), anchor="w")
        label.grid(row=len(FIRST_PATHS) + 1, column=0, sticky="w", padx=10, pady=(3, 8))
        self.name = ctk.CTkEntry(frame, font=theme.font(), placeholder_text=self._default_name())
        self.name.grid(row=len(FIRST_PATHS) + 1, column=1, sticky="ew", pady=(3, 8))
        self.name.bind("<KeyRelease>", self._typed)

    def _build_preview(self) -> None:
        self.note = ctk.CTkLabel(self, text="", font=self.app.theme.font(), anchor="w", justify="left", wraplength=720)
        self.note.grid(row=1, column=0, sticky="ew", padx=18)
        frame = ctk.CTkFrame(self, fg_color=Theme.card)
        frame.grid(row=2, column=0, sticky="nsew", padx=14, pady=4)
        frame.grid_columnconfigure(0, weight=1)
        frame.grid_rowconfigure(0, weight=1)
        columns = {"No.": 50, "Name": 360, "Output folder": 300}
        self.table = ttk.Treeview(frame, columns=list(columns), show="headings", selectmode="none", height=4)
        for title in columns:
            self.table.heading(title, text=title, anchor="w")
        fit_columns(self.table, columns, self.app.theme)
        self.table.grid(row=0, column=0, sticky="nsew", padx=(6, 0), pady=6)
        make_scrollbar(frame, self.table, row=0, column=1)

    def _build_buttons(self) -> None:
        theme, bar = self.app.theme, ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=3, column=0, sticky="e", padx=14, pady=(4, 14))
        ctk.CTkButton(bar, text="Cancel", width=90, font=theme.font(), command=self.destroy).grid(row=0, column=0)
        self.button = ctk.CTkButton(bar, text="Add", width=110, font=theme.font(), command=self.add)
        self.button.configure(fg_color=Theme.selected, hover_color=Theme.selected_hover, text_color=Theme.on_accent)
        self.button.grid(row=0, column=1, padx=(8, 0))


def setting_called(text: str) -> str:
    """The path of the setting that is called `text`: by its path, or as the search finds it; else `text` itself."""
    if generic_path(text) in settings_by_path():
        return text
    return next((path for path in find_settings(text) if "[]" not in path), text)


def _add(entries: list, queue: TrainingQueue) -> int:
    added = queue.add_all(entries)
    continue_queue(queue)
    return len(added)
