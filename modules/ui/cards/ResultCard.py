"""How a run ended: its duration and loss, what it has saved, and what to do next."""

from __future__ import annotations

import tkinter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.session.byte_sizes import spoken_bytes
from modules.session.RunFolder import RunFolder
from modules.ui.cards.Card import Card
from modules.ui.models.run_text import describe_end, describe_result
from modules.ui.models.SampleTable import arrange_samples
from modules.ui.theme import Theme
from modules.ui.widgets.fitting import FittedLabel

if TYPE_CHECKING:
    from modules.ui.App import App
    from modules.ui.models.RunState import RunState

SYMBOLS = {"finished": ("✓", Theme.success), "stopped": ("■", Theme.text)}
FAILED = ("✗", Theme.error)


class ResultCard(Card):
    """Shows a run that has ended. show_report: opens the crash report."""

    def __init__(self, parent: tkinter.Misc, app: App, show_report: Callable[[], object]):
        super().__init__(parent, app, "")
        self._shown: tuple | None = None
        self._size_labels: dict[Path, FittedLabel] = {}
        self._facts = self.add_note(1)
        self._rows = ctk.CTkFrame(self, fg_color="transparent")
        self._rows.grid(row=2, column=0, sticky="ew", padx=12, pady=4)
        self._rows.grid_columnconfigure(0, weight=1)
        actions = (
            ("Open folder", self.open_run_folder),
            ("Load these settings", self._load_settings),
            ("Resume", self._resume),
        )
        self.folder, self.settings, self.resume = self.add_buttons(3, *actions)
        (self.report,) = self.add_buttons(4, ("Crash report…", show_report))

    def show(self, state: RunState) -> None:
        """Show how the run ended; nothing is written if that is shown already."""
        shown = (state.folder, str(state.exit), len(state.saved), len(state.samples), len(state.backups))
        if shown == self._shown or state.exit is None:
            return
        self._shown = shown
        symbol, colour = SYMBOLS.get(str(state.exit.get("status")), FAILED)
        self.show_title(f"{symbol} {describe_end(state)}")
        self._title.configure(text_color=colour)
        self._facts.configure(text=describe_result(state))
        can_resume = state.exit.get("status") != "finished" and state.backups
        self.resume.configure(state="normal" if can_resume else "disabled")
        has_report = state.exit.get("status") not in SYMBOLS
        self.report.master.grid() if has_report else self.report.master.grid_remove()
        for row in self._rows.winfo_children():
            row.destroy()
        self._size_labels.clear()
        for model in state.saved:
            if model.step == state.saved[-1].step and model.path not in self._size_labels:
                copy = partial(self._copy, model.path)
                self._size_labels[model.path] = self._add_row(model.path.name, "Copy path", copy)
        if state.samples:
            table = arrange_samples(state.samples)
            text = f"{counted(len(table.paths), 'sample')} of {counted(len(table.steps), 'step')}"
            self._add_row(text, "Show", lambda: self.app.open_tab("sampling"))
        if state.backups:
            self._add_row(f"Backup {state.backups[-1].name}", "Show", lambda: self.app.open_tab("backup"))
        paths = list(self._size_labels)
        self.app.in_background(lambda: {path: size_of(path) for path in paths}, self._show_sizes)

    def _show_sizes(self, sizes: dict[Path, int | None]) -> None:
        """Add the sizes of the models, which a slow disk may take a while to tell, and drop those that are gone.

        A run whose disk was full has moved its model from the copy that it had saved elsewhere first.
        """
        if not self.winfo_exists():
            return
        for path, label in list(self._size_labels.items()):
            size = sizes.get(path, 0)
            if size:
                label.configure(text=f"{path.name}   {spoken_bytes(size)}")
            elif size is None:
                del self._size_labels[path]
                for widget in self._rows.grid_slaves(row=int(label.grid_info()["row"])):
                    widget.destroy()

    def _add_row(self, text: str, action: str, command: Callable[[], object]) -> FittedLabel:
        theme, number = self.app.theme, len(self._rows.winfo_children())
        label = FittedLabel(self._rows, text=text, font=theme.font(12), anchor="w")
        label.grid(row=number, column=0, sticky="ew", pady=1)
        button = ctk.CTkButton(self._rows, text=action, width=20, height=24, font=theme.font(12), command=command)
        button.grid(row=number, column=1, sticky="e", padx=(8, 0), pady=1)
        return label

    def _copy(self, path: Path) -> None:
        self.app.root.clipboard_clear()
        self.app.root.clipboard_append(str(path))
        self.app.show_message(f"Copied {path}.", "info")

    def _load_settings(self) -> bool:
        """Returns whether that was possible."""
        folder = self.app.run.state.folder
        assert folder is not None  # of the run that is shown
        try:
            self.app.settings.load_run(folder)
        except UserError as error:
            self.app.show_message(str(error), "error")
            return False
        self.app.show_message(f"Loaded the settings of {folder.name}. Undo restores the earlier ones.", "info")
        return True

    def _resume(self) -> None:
        """Resume the run: with the settings of the window if they are for its folder, else with its own."""
        try:
            is_own = RunFolder(self.app.settings.get("workspace_dir")).path == self.app.run.state.folder
        except UserError:  # an invalid output folder, which its field reports
            is_own = False
        if is_own or self._load_settings():
            self.app.resume_run()


def size_of(path: Path) -> int | None:
    """The bytes of a file, or of all files in a folder; None if it is gone, 0 if that can't be told."""
    try:
        if not path.exists():
            return None
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0
