"""One edit of the captions of many images, with a preview of every change."""

from __future__ import annotations

import os
import tkinter as tk
from collections.abc import Callable, Mapping, Sequence
from tkinter import ttk
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.errors import UserError
from modules.config.visible_text import visible_line
from modules.ui.models.caption_edits import (
    KINDS,
    Fields,
    ManyEdits,
    around_change,
    label_of_edit,
    misspelled_in,
    preview_edit,
    read_captions_of,
)
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import focus_soon, set_size, show_over
from modules.ui.widgets.fitting import fit_columns, wrap_to
from modules.ui.widgets.scrolling import make_scrollbar
from modules.ui.widgets.TextWidths import TextWidths

if TYPE_CHECKING:
    from modules.curation.CaptionFiles import Caption
    from modules.curation.TagIndex import Misspelling
    from modules.ui.App import App
    from modules.ui.models.CaptionWork import CaptionWork
    from modules.ui.models.DatasetView import DatasetItem

TYPING_MS = 200  # after the last key
MAX_ROWS = 500  # of the preview: a table of all would take seconds
MAX_TAGS = 40  # in the menu of those there are
COLUMNS = {"Image": 180, "Before": 320, "After": 320}
NAME_PAD = 12  # unscaled pixels beside a name in its column
INSERT = "Insert a tag…"
MISSPELLED = "Misspelled: {:,}"
REPLACE = "Replace a tag"

Write = Callable[[str, "dict[int, dict[str, str]]", "dict[str, Caption]"], None]


class EditCaptionsWindow(ctk.CTkToplevel):
    """parent: the window over which it stays. items: whose captions are edited.

    tags: those there are, the most frequent first, with their counts.

    caption: of the current image, which others can be given. on_write: called with a label, the new captions by concept
    and path, and the captions that they were made from.
    """

    def __init__(
        self,
        app: App,
        parent: tk.Toplevel,
        work: CaptionWork,
        items: Sequence[DatasetItem],
        tags: Sequence[tuple[str, int]],
        caption: str,
        on_write: Write,
    ):
        super().__init__(parent, fg_color=app.theme.page)
        self.app, self._work, self._on_write = app, work, on_write
        self._current = caption
        self._captions: Mapping[int, Mapping[str, Caption]] = {}
        self.edits: ManyEdits | None = None
        self._version = 0  # of the preview, so that an outdated one that finishes late is not shown
        self._job: str | None = None
        self._tags = {f"{visible_line(tag)[:60]} ({count:,})": tag for tag, count in tags[:MAX_TAGS]}
        self.title(f"Edit captions: {len(items):,} images" if len(items) != 1 else "Edit the caption of one image")
        self.transient(parent)
        set_size(self, "900x600", (560, 380))
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(2, weight=1)
        self._build()
        self.bind("<Escape>", lambda event: self.destroy())
        show_over(app, self)
        focus_soon(app, self.first)
        app.in_background(lambda: read_captions_of(work, items), self._take_captions)

    def apply(self) -> None:
        """Write what the preview shows, and close."""
        edits = self.edits
        if edits is not None and edits.texts:
            label = label_of_edit(self.kind.get(), self._fields(), edits.num_changed)
            self.destroy()
            self._on_write(label, edits.texts, dict(edits.captions))

    # --- the preview -------------------------------------------------------------------------------------------------

    def _take_captions(self, captions: Mapping[int, Mapping[str, Caption]]) -> None:
        if self.winfo_exists():
            self._captions = captions
            self._preview()
            work = self._work
            self.app.in_background(lambda: misspelled_in(work, captions), self._take_misspelled)

    def _take_misspelled(self, found: Sequence[Misspelling]) -> None:
        """Offer tags that look misspelled, each with what may be meant."""
        if not found or not self.winfo_exists():
            return
        for one in found[:MAX_TAGS]:
            rare, meant = (f"{visible_line(tag.tag)[:40]} ({tag.count:,})" for tag in (one.tag, one.meant))
            self._misspelled[f"{rare} → {meant}"] = one
        self._offer.configure(values=list(self._misspelled))
        self._offer.set(MISSPELLED.format(len(self._misspelled)))
        self._show_offer()

    def _fields(self) -> Fields:
        return Fields(self.first.get(), self.second.get(), bool(self._tick.get()), bool(self._case.get()))

    def _preview_later(self) -> None:
        self._enable(False)
        if self._job is not None:
            self.after_cancel(self._job)
        self._job = self.after(TYPING_MS, self._preview)

    def _preview(self) -> None:
        self._job = None
        self._version += 1
        version, kind, fields = self._version, self.kind.get(), self._fields()
        work, captions = self._work, self._captions
        if KINDS[kind].first and not fields.first:
            self._show(None, "Nothing is typed yet.")
            return

        def take(edits: ManyEdits) -> None:
            if version == self._version and self.winfo_exists():
                self._show(edits, edits.summary)

        def fail(error: Exception) -> None:
            if not isinstance(error, UserError):
                raise error
            if version == self._version and self.winfo_exists():
                self._show(None, str(error), is_wrong=True)

        self.app.in_background(lambda: preview_edit(work, captions, kind, fields), take, fail)

    def _show(self, edits: ManyEdits | None, text: str, is_wrong: bool = False) -> None:
        self.edits = edits
        rows = edits.rows if edits is not None else []
        self.table.delete(*self.table.get_children())
        widths, font = TextWidths(self.app.root), self.app.theme.plain_font()
        room = self.table.column("Image", "width") - self.app.theme.scaled(NAME_PAD)
        for path, before, after in rows[:MAX_ROWS]:
            cells = list(map(visible_line, (os.path.basename(path), *around_change(before, after))))
            self.table.insert("", "end", values=[widths.cut(cells[0], room, font, is_name=True), *cells[1:]])
        if len(rows) > MAX_ROWS:
            text += f" The first {MAX_ROWS} are shown."
        self._state.configure(text=text, text_color=Theme.error if is_wrong else Theme.muted)
        self._apply.configure(text=f"Change {len(rows):,}" if rows else "Change")
        self._enable(bool(rows))

    def _enable(self, can_apply: bool) -> None:
        """Gray text on the color of the main button could not be read."""
        colour = Theme.selected if can_apply else Theme.control
        self._apply.configure(state="normal" if can_apply else "disabled", fg_color=colour)

    # --- widgets -----------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        theme, font = self.app.theme, self.app.theme.font()
        card = ctk.CTkFrame(self)
        card.grid(row=0, column=0, sticky="ew", padx=14, pady=(14, 8))
        card.grid_columnconfigure(1, weight=1)
        self.kind = ctk.CTkOptionMenu(card, values=list(KINDS), width=190, font=font, command=self._show_kind)
        self.kind.grid(row=0, column=0, columnspan=2, sticky="w", padx=12, pady=(12, 8))
        self._names: list[ctk.CTkLabel] = []
        entries: list[ctk.CTkEntry] = []
        for row in (1, 2):
            self._names.append(ctk.CTkLabel(card, text="", font=font, anchor="w", width=110))
            entries.append(ctk.CTkEntry(card, font=font))
            entries[-1].bind("<KeyRelease>", lambda event: self._preview_later())
            entries[-1].bind("<Return>", lambda event: self._apply.invoke())
            self._names[-1].grid(row=row, column=0, sticky="w", padx=(12, 8), pady=(0, 8))
            entries[-1].grid(row=row, column=1, sticky="ew", padx=(0, 12), pady=(0, 8))
        self.first: ctk.CTkEntry = entries[0]
        self.second: ctk.CTkEntry = entries[1]
        self._insert = ctk.CTkOptionMenu(card, values=list(self._tags), width=150, font=font, command=self._insert_tag)
        self._insert.set(INSERT)
        self._insert.grid(row=1, column=2, padx=(0, 12), pady=(0, 8))
        self._misspelled: dict[str, Misspelling] = {}  # by what the menu says of them
        self._offer = ctk.CTkOptionMenu(card, values=[], width=150, font=font, command=self._correct)
        self._offer.grid(row=0, column=1, columnspan=2, sticky="e", padx=(0, 12), pady=(12, 8))
        ticks = ctk.CTkFrame(card, fg_color="transparent")
        ticks.grid(row=3, column=1, columnspan=2, sticky="w", pady=(0, 10))
        self._tick = ctk.CTkCheckBox(ticks, text="", font=font, command=self._preview)
        self._case = ctk.CTkCheckBox(ticks, text="", font=font, command=self._preview)
        for column, box in enumerate((self._tick, self._case)):
            box.grid(row=0, column=column, padx=(0, 16))
        self._state = ctk.CTkLabel(self, text="Reading the captions…", font=font, anchor="w", justify="left")
        self._state.grid(row=1, column=0, sticky="ew", padx=16)
        wrap_to(self, self._state, theme, taken=40)
        self.table = self._make_table()
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=3, column=0, sticky="e", padx=14, pady=(8, 14))
        ctk.CTkButton(bar, text="Cancel", width=90, font=font, command=self.destroy).grid(row=0, column=0)
        colours = {"hover_color": Theme.selected_hover, "text_color": Theme.on_accent}
        self._apply: ctk.CTkButton = ctk.CTkButton(
            bar, text="Change", width=110, font=font, command=self.apply, **colours
        )
        self._enable(False)
        self._apply.grid(row=0, column=1, padx=(8, 0))
        self._show_kind(self.kind.get())

    def _make_table(self) -> ttk.Treeview:
        frame = ctk.CTkFrame(self, fg_color=Theme.card)
        frame.grid(row=2, column=0, sticky="nsew", padx=14, pady=(6, 0))
        frame.grid_columnconfigure(0, weight=1)
        frame.grid_rowconfigure(0, weight=1)
        table = ttk.Treeview(frame, columns=list(COLUMNS), show="headings", selectmode="browse")
        make_scrollbar(frame, table, row=0, column=1)
        for title in COLUMNS:
            table.heading(title, text=title, anchor="w")
        fit_columns(table, COLUMNS, self.app.theme)
        table.grid(row=0, column=0, sticky="nsew", padx=(6, 0), pady=6)
        return table

    def _show_kind(self, name: str) -> None:
        """Show the fields of an edit."""
        kind = KINDS[name]
        for label, entry, text in zip(self._names, (self.first, self.second), (kind.first, kind.second), strict=True):
            label.configure(text=text)
            for widget in (label, entry):
                (widget.grid if text else widget.grid_remove)()
        self._show_offer()
        (self._insert.grid if kind.takes_tags and self._tags else self._insert.grid_remove)()
        for box, text in ((self._tick, kind.tick), (self._case, kind.case)):
            box.deselect()
            box.configure(text=text)
            (box.grid if text else box.grid_remove)()
        if kind.first == "Caption":
            self.first.delete(0, "end")
            self.first.insert(0, self._current.replace("\n", " "))
        self._preview()

    def _show_offer(self) -> None:
        is_tags = bool(KINDS[self.kind.get()].takes_tags)
        (self._offer.grid if self._misspelled and is_tags else self._offer.grid_remove)()

    def _correct(self, name: str) -> None:
        """Replace a tag that looks misspelled by what may be meant, once the preview was looked at."""
        one = self._misspelled[name]
        self._offer.set(MISSPELLED.format(len(self._misspelled)))
        self.kind.set(REPLACE)
        for entry, text in ((self.first, one.tag.tag), (self.second, one.meant.tag)):
            entry.delete(0, "end")
            entry.insert(0, text)
        self._show_kind(REPLACE)

    def _insert_tag(self, name: str) -> None:
        self._insert.set(INSERT)
        there = self.first.get().strip()
        self.first.delete(0, "end")
        self.first.insert(0, f"{there.rstrip(',')}, {self._tags[name]}" if there else self._tags[name])
        self._preview()

    def destroy(self) -> None:
        if self._job is not None:
            self.after_cancel(self._job)
        super().destroy()
