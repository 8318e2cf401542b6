"""The live log of the run."""

from __future__ import annotations

import time
import tkinter
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.ui.models.RunState import LogLine
from modules.ui.theme import Theme
from modules.ui.widgets.Textbox import Textbox

if TYPE_CHECKING:
    from modules.ui.App import App

MAX_LINES = 5000
BATCH_LINES = 500  # inserted at a time, which takes a millisecond
LOOK_SECONDS = 0.2
ALL, SUPERVISOR = "All ranks", "Supervisor"
COLOURS = {"warning": Theme.warning, "failed": Theme.error, "traceback": Theme.error, "step": Theme.muted}


class LogPane(ctk.CTkFrame):
    """The last lines of the log, of all ranks or of one. Follows the end unless the user scrolls away from it.
    For all ranks together it shows only the steps of rank 0.

    The rank selected on the multi-GPU tab is selected here too.
    """

    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, fg_color=Theme.card, corner_radius=8)
        self.app = app
        self._history: object = None
        self._read = 0
        self._waiting: list[LogLine] = []
        self._num_shown = 0
        self._follows = True  # the end
        self._chosen_elsewhere = app.log_rank
        self._ranks: list[int] = []
        self.grid_columnconfigure(1, weight=1)
        self.grid_rowconfigure(1, weight=1)
        title = ctk.CTkLabel(self, text="Log", font=app.theme.font(15, "bold"), anchor="w")
        title.grid(row=0, column=0, sticky="w", padx=12, pady=(8, 4))
        self.filter = ctk.CTkOptionMenu(self, values=[ALL], width=130, height=26, command=lambda name: self.refill())
        self.filter.set(ALL if app.log_rank is None else f"Rank {app.log_rank}")
        self.filter.grid(row=0, column=1, sticky="e", padx=12, pady=(8, 4))
        font = app.theme.font(12, mono=True)
        self.box = Textbox(self, wrap="word", font=font, fg_color=Theme.code, border_width=0, state="disabled")
        self.box.grid(row=1, column=0, columnspan=2, sticky="nsew", padx=12, pady=(0, 12))
        self.text = self.box._textbox
        self.text.bind("<Configure>", lambda event: self._show_whole_lines(), add="+")
        self._restyle()
        self._end_theme = app.theme.on_change(self._restyle)
        self._stop_looking = app.every(LOOK_SECONDS, self.look)

    def destroy(self) -> None:
        self._stop_looking()
        self._end_theme()
        super().destroy()

    def look(self) -> None:
        """Show new lines, a portion at a time."""
        if not self.winfo_viewable():
            return
        run = self.app.run
        if run.state.folder is None and self._history is None:  # no run yet; to ask for its history imports NumPy
            return
        self._follows = self.text.yview()[1] > 0.999
        if run.history is not self._history:  # another run, which may lack the rank that was chosen here
            self._history, self._chosen_elsewhere = run.history, self.app.log_rank
            self.choose(self.app.log_rank)
        if self.app.log_rank != self._chosen_elsewhere:
            self._chosen_elsewhere = self.app.log_rank
            self.choose(self.app.log_rank)
        self._offer_ranks([row.rank for row in run.state.ranks])
        lines, self._read = run.log_since(self._read)
        self._waiting += [line for line in lines if self._is_wanted(line)]
        self._waiting = self._waiting[-MAX_LINES:]
        if self._waiting:
            portion, self._waiting = self._waiting[:BATCH_LINES], self._waiting[BATCH_LINES:]
            self._insert(portion)

    def choose(self, rank: int | None) -> None:
        """Show the lines of one rank; None: all ranks."""
        self.filter.set(ALL if rank is None else f"Rank {rank}")
        self.refill()

    def refill(self) -> None:
        """Rebuild the text for the selected rank."""
        self._read, self._waiting, self._num_shown = 0, [], 0
        self.text.configure(state="normal")
        self.text.delete("1.0", "end")
        self.text.configure(state="disabled")

    def _is_wanted(self, line: LogLine) -> bool:
        chosen = self.filter.get()
        if chosen == ALL:
            return line.kind != "step" or line.rank == 0  # all ranks take the same steps
        return chosen == _name(line.rank)

    def _offer_ranks(self, ranks: list[int]) -> None:
        if ranks != self._ranks:
            self._ranks = ranks
            self.filter.configure(values=[ALL, *map(_name, ranks), SUPERVISOR])

    def _insert(self, lines: list[LogLine]) -> None:
        self._follows = self.text.yview()[1] > 0.999
        pieces: list[str] = []
        for line in lines:
            stamp = time.strftime("%H:%M:%S", time.localtime(line.time))
            text = line.text.rstrip().replace("\n", "\n" + " " * 9)
            start = "\n" if self._num_shown else ""  # before the line: after the last one it would show as an empty one
            pieces += [f"{start}{stamp} {_name(line.rank)}: {text}", line.kind]
            self._num_shown += 1 + text.count("\n")
        self.text.configure(state="normal")
        self.text.insert("end", *pieces)
        if self._num_shown > MAX_LINES:
            self.text.delete("1.0", f"{self._num_shown - MAX_LINES + 1}.0")
            self._num_shown = MAX_LINES
        self.text.configure(state="disabled")
        if self._follows:
            self.text.see("end")

    def _show_whole_lines(self) -> None:
        """Leave the height that is too small for a line empty, or the first line in sight would be cut."""
        line = self.tk.call("font", "metrics", self.text.cget("font"), "-linespace")
        border = int(self.text.cget("borderwidth")) + int(self.text.cget("highlightthickness"))
        self.text.configure(pady=(self.text.winfo_height() - 2 * border) % line / 2)
        if self._follows:  # as of before the size has changed
            self.text.see("end")

    def _restyle(self) -> None:
        for kind, colour in COLOURS.items():
            self.text.tag_configure(kind, foreground=self.app.theme.now(colour))


def _name(rank: int | None) -> str:
    return SUPERVISOR if rank is None else f"Rank {rank}"
