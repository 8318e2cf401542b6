"""What is known and noted about the selected run, beside the list of runs."""

from __future__ import annotations

import time
import tkinter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import customtkinter as ctk

from modules.config.counted import counted
from modules.config.visible_text import visible_line, visible_text
from modules.runs.marks import Marks, tags_of
from modules.runs.RunTable import ARROW, TableRun, loss_text, spoken_duration
from modules.session.working_folder import shown_path
from modules.ui.theme import Theme
from modules.ui.widgets.fitting import wrap_to
from modules.ui.widgets.Page import Page
from modules.ui.widgets.Textbox import Textbox

if TYPE_CHECKING:
    from modules.ui.App import App

WIDTH, NOTE_HEIGHT = 280, 84
MAX_LISTED = 20  # settings that differ


class RunPane(ctk.CTkFrame):
    """write: called with a run and its changed marks, when a field is left or Return is pressed in it."""

    def __init__(self, parent: tkinter.Misc, app: App, write: Callable[[TableRun, dict[str, Any]], None]):
        super().__init__(parent)
        self.app, self._write = app, write
        self._run: TableRun | None = None
        self._filled = Marks()
        page = self._page = Page(self, width=WIDTH)
        page.pack(fill="both", expand=True, padx=4, pady=4)
        page.grid_columnconfigure(0, weight=1)
        font, small = app.theme.font(), app.theme.font(12)
        self.title = ctk.CTkLabel(page, text="", font=app.theme.font(15, "bold"), anchor="w", justify="left")
        self.facts = ctk.CTkLabel(page, text="", font=small, text_color=Theme.muted, anchor="w", justify="left")
        self.name = ctk.CTkEntry(page, font=font, height=28)
        self.tags = ctk.CTkEntry(page, font=font, height=28)
        self.note = Textbox(page, height=NOTE_HEIGHT, wrap="word", font=font)
        self.changes = ctk.CTkLabel(page, text="", font=small, anchor="w", justify="left")
        rows = (
            ("", self.title),
            ("", self.facts),
            ("Name (the folder keeps its own)", self.name),
            ("Tags, separated by commas", self.tags),
        )
        for text, widget in (*rows, ("Note", self.note), ("Differs from the one before", self.changes)):
            if text:
                label = ctk.CTkLabel(page, text=text, font=small, text_color=Theme.muted, anchor="w", height=18)
                label.grid(sticky="ew", padx=8, pady=(8, 2))
            widget.grid(sticky="ew", padx=8, pady=(0, 2))
        for label in (self.title, self.facts, self.changes):
            wrap_to(page._parent_canvas, label, app.theme, 40)
        for widget in (self.name, self.tags, self.note):
            widget.bind("<FocusOut>", lambda event: self.save())
        for widget in (self.name, self.tags):
            widget.bind("<Return>", lambda event: self.save())

    def show(self, runs: Sequence[TableRun]) -> None:
        """Show the selected run; with several, how many there are."""
        run = runs[0] if len(runs) == 1 else None
        if run == self._run and run is not None:
            return
        is_other = run is None or self._run is None or run.folder != self._run.folder
        if is_other:
            self.save()
        if run is None or is_other or (run.row.marks != self._filled and not self._typed()):
            self._fill(run)  # also what another window has noted
        self._run = run
        self.title.configure(text=_title(runs))
        self.facts.configure(text=visible_text(_facts(run)) if run is not None else "")
        self.changes.configure(text=_changes(run) if run is not None else "")

    def save(self) -> None:
        """Write what was changed in the fields."""
        if self._run is not None and (changes := self._typed()):
            self._filled = replace(self._filled, **changes)
            self._write(self._run, changes)

    def _typed(self) -> dict[str, Any]:
        """What differs in the fields from what they were filled with."""
        if self._run is None:
            return {}
        note = self.note.get("1.0", "end-1c").strip()
        values = {"name": self.name.get().strip(), "tags": tags_of(self.tags.get()), "note": note}
        return {name: value for name, value in values.items() if value != getattr(self._filled, name)}

    def _fill(self, run: TableRun | None) -> None:
        marks = None if run is None else run.row.marks
        self._filled = marks or Marks()
        texts = ("", "") if marks is None else (marks.name, ", ".join(marks.tags))
        for entry, text in zip((self.name, self.tags), texts, strict=True):
            entry.configure(state="normal")
            entry.delete(0, "end")
            entry.insert(0, visible_line(text))
            entry.configure(state="disabled" if run is None else "normal")
        self.note.configure(state="normal")
        self.note.delete("1.0", "end")
        self.note.insert("1.0", "" if marks is None else marks.note)
        self.note.configure(state="disabled" if run is None else "normal")


def _title(runs: Sequence[TableRun]) -> str:
    if not runs:
        return "No run selected"
    return visible_line(runs[0].row.shown_name) if len(runs) == 1 else f"{counted(len(runs), 'run')} selected"


def _facts(run: TableRun) -> str:
    row = run.row
    if not row.is_read:
        return f"{shown_path(run.folder)}\nIts events are being read…"
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.started)) if row.started else "unknown"
    lines = [
        shown_path(run.folder),
        f"{run.state()}, started {started}" + (f", {took}" if (took := spoken_duration(row.seconds)) else ""),
    ]
    lines.append(f"{counted(row.step, 'step')}, {counted(row.images, 'image')}, {counted(row.epoch, 'epoch')}")
    if row.loss is not None:
        lines.append(
            f"loss {loss_text(row.loss)}" + (f", validation {loss_text(row.validation)}" if row.validation else "")
        )
    if row.preset:
        lines.append(f"closest preset {run.preset}, base {run.base}")
    if row.saved:
        lines.append(f"{counted(len({step for step, _ in row.saved}), 'checkpoint')} saved")
    if row.reason:
        lines.append(row.reason.partition("\n")[0])
    if (result := row.marks.result) is not None:
        strength = "" if result.strength is None else f", strength {result.strength:.2f}"
        lines.append(f"Result: {result.image}, step {result.step:,}{strength}")
    return "\n".join(lines)


def _changes(run: TableRun) -> str:
    if run.before is None:
        return "It is the first run in its folder." if run.row.is_read else ""
    found = run.changes()
    lines = [
        f"{one.label}: {visible_line(one.values[0])} {ARROW} {visible_line(one.values[1])}"
        for one in found[:MAX_LISTED]
    ]
    more = [f"{len(found) - MAX_LISTED} more"] if len(found) > MAX_LISTED else []
    return "\n".join([*lines, *more]) or f"Nothing: the settings are those of {run.before.shown_name}."
