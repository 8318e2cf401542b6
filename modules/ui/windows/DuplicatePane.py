"""One group of images that look alike, to be compared: which one is kept, and the others left out."""

from __future__ import annotations

import os
import tkinter as tk
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.ui.models.duplicate_groups import members_of, num_groups, one_to_keep
from modules.ui.widgets.fitting import lay_in_rows, wrap_to
from modules.ui.widgets.GroupCanvas import GroupCanvas
from modules.ui.widgets.Tooltip import Tooltip

if TYPE_CHECKING:
    from modules.curation.Journal import Applied
    from modules.ui.App import App
    from modules.ui.models.DatasetView import DatasetItem
    from modules.ui.windows.CaptionPane import CaptionPane

HINT = "Left and Right, or a click, choose the one to keep. Left out images stay in the folder."

NARROW = 400  # unscaled pixels: there the hint would take room from the images


class DuplicatePane(ctk.CTkFrame):
    """The group of the image that is shown.

    captions: writes the settings, in order with captions. on_note: called with a sentence on what was done or failed.
    on_leave: called when comparing is to end. on_go: called with the image that is to be shown next.
    """

    def __init__(
        self,
        parent: tk.Misc,
        app: App,
        captions: CaptionPane,
        on_note: Callable[[str], None],
        on_leave: Callable[[], None],
        on_go: Callable[[DatasetItem], None],
    ):
        super().__init__(parent, fg_color="transparent")
        self.app = app
        self.group = 0  # that is shown; 0: none
        self._item: DatasetItem | None = None  # of it, that the window shows
        self._captions, self._on_note, self._on_leave, self._on_go = captions, on_note, on_leave, on_go
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(0, weight=1)
        self.cells = GroupCanvas(self, app, self._choose, on_open=lambda number: self.keep())
        self.cells.grid(row=0, column=0, sticky="nsew")
        self.canvas = self.cells.canvas
        self._build()
        self.bind("<Configure>", lambda event: self._show_state(), add="+")
        self.canvas.unbind("<Double-Button-1>")  # which would keep an image that is only looked at
        for keys, step in ((("<Next>", "<n>", "<N>"), 1), (("<Prior>", "<p>", "<P>"), -1)):
            for key in keys:
                self.canvas.bind(key, partial(self._on_step, step))
        for key in ("<d>", "<D>", "<Escape>"):
            self.canvas.bind(key, lambda event: self._leave())
        for key in ("<Control-d>", "<Control-D>", "<Control-n>", "<Control-N>", "<Control-p>", "<Control-P>"):
            self.canvas.bind(key, lambda event: None)  # of the window

    # --- public methods ----------------------------------------------------------------------------------------------

    def show(self, item: DatasetItem | None) -> None:
        """Show the group of an image; None: none. An image that is gone to in the same group is the one to keep."""
        before, self._item = self._item, item
        group, self.group = self.group, item.group if item is not None else 0
        members = members_of(self._captions.items(), self.group)
        chosen = one_to_keep(members) if members else None
        if item is not None and group == self.group and self.cells.chosen is not None:
            is_other = before is None or before.path != item.path
            chosen = members.index(item) if is_other and item in members else self.cells.chosen
        self.cells.show(members, chosen)
        self._show_state()

    def take_renewed(self, paths: set[str]) -> None:
        """Show images again whose settings or captions have changed."""
        if any(item.path in paths for item in self.cells.members):
            self.cells.redraw()

    def keep(self) -> None:
        """Train the chosen image, leave the others of the group out, and go to the next group."""
        work, members, chosen = self._captions.work, self.cells.members, self.cells.chosen
        if work is None or not members or chosen is None:
            return
        kept, others = members[chosen], [item for number, item in enumerate(members) if number != chosen]
        label = f"Keep {os.path.basename(kept.path)}, leave {counted(len(others), 'image')} out"
        for number in sorted({item.concept for item in members}):
            of_kept = [kept.path_below] if kept.concept == number else []
            of_others = [item.path_below for item in others if item.concept == number]

            def write(number: int = number, of_kept: list[str] = of_kept, of_others: list[str] = of_others) -> Applied:
                return work.keep_only(number, label, of_kept, of_others)

            self._captions.do(write, lambda applied: self._take_written(applied, members), self._fail)
        self.step(1)

    def step(self, by: int) -> None:
        """Go to the next (1) or the former (-1) group; behind the last one there is none."""
        items = self._captions.items()
        group = self.group + by
        if 1 <= group <= num_groups(items):
            members = members_of(items, group)
            self.show(members[one_to_keep(members)])
            self._choose(one_to_keep(members))

    # --- the rest ----------------------------------------------------------------------------------------------------

    def _take_written(self, applied: Applied, members: Sequence[DatasetItem]) -> None:
        is_last = self.group == num_groups(self._captions.items()) and self.cells.members == members
        self._on_note(f"{applied.label}: done.{' This was the last group.' if is_last else ''}")
        self._captions.renew(members)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, UserError):
            raise error
        self._captions.tell_failed(f"The images are not left out: {error}")

    def _choose(self, number: int) -> None:
        """Let the rest of the window show the chosen image, too."""
        self._item = self.cells.members[number]
        self._on_go(self._item)

    def _on_step(self, by: int, event: object) -> str:
        self.step(by)
        return "break"

    def _leave(self) -> str:
        self._on_leave()
        return "break"

    def _show_state(self) -> None:
        number = num_groups(self._captions.items())
        size = f", {counted(len(self.cells.members), 'image')}" if self.group else ""
        hint = f" {HINT}" if self.winfo_width() >= self.app.theme.scaled(NARROW) else ""
        self._state.configure(text=f"Group {self.group or '-'} of {number}{size}.{hint}")
        states = {"former": self.group > 1, "next": self.group < number, "keep": bool(self.group), "done": True}
        for name, is_possible in states.items():
            self.buttons[name].configure(state="normal" if is_possible else "disabled")

    def _build(self) -> None:
        theme, font = self.app.theme, self.app.theme.font(12)
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=1, column=0, sticky="ew", pady=(6, 0))
        self.buttons: dict[str, ctk.CTkButton] = {}
        for name, text, command, hint in (
            ("keep", "Keep this one", self.keep, "Leave the others out and go to the next group (Return)."),
            ("former", "Previous", lambda: self.step(-1), "The group before (Page Up or P)."),
            ("next", "Next", lambda: self.step(1), "The next group, without a change (Page Down or N)."),
            ("done", "Done", self._on_leave, "End comparing (D)."),
        ):
            button = ctk.CTkButton(bar, text=text, width=50, height=26, font=font, command=command)
            Tooltip(button, theme, partial(str, hint))
            self.buttons[name] = button
        lay_in_rows(bar, list(self.buttons.values()), theme)
        self._state = ctk.CTkLabel(self, text="", font=font, anchor="w", justify="left", text_color=theme.muted)
        self._state.grid(row=2, column=0, sticky="ew", padx=4, pady=(4, 0))
        wrap_to(self, self._state, theme, taken=8)
