"""The runs and settings files used last, each with its next action."""

from __future__ import annotations

import tkinter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.errors import UserError
from modules.session.working_folder import shown_path
from modules.ui.cards.Card import Card
from modules.ui.models.recent_runs import Recent, RecentRun, find_recent
from modules.ui.theme import Theme
from modules.ui.widgets.fitting import FittedLabel
from modules.ui.widgets.Tooltip import Tooltip

if TYPE_CHECKING:
    from PIL import Image

    from modules.ui.App import App
    from modules.ui.models.RunState import RunState

LOOK_SECONDS = 10.0
SIDE = 48  # of a thumbnail, unscaled


class RecentCard(Card):
    """show_all: opens the window with all runs."""

    def __init__(self, parent: tkinter.Misc, app: App, show_all: Callable[[], object]):
        super().__init__(parent, app, "Recent")
        self._shown: Recent | None = None
        self._run: tuple = ()
        self._is_looking = False
        self.buttons: dict[tuple[str, str], ctk.CTkButton] = {}  # by path and text
        self._lines: dict[str, list[FittedLabel]] = {}  # by path
        self._body = ctk.CTkFrame(self, fg_color="transparent", height=0)
        self._body.grid(row=1, column=0, sticky="ew", padx=12, pady=(2, 4))
        self._body.grid_columnconfigure(0, weight=1)
        all_runs = ctk.CTkButton(self, text="All runs…", width=20, height=26, font=app.theme.font(12), command=show_all)
        all_runs.grid(row=0, column=0, sticky="e", padx=12, pady=(8, 2))  # where it needs no scrolling
        self._view = app.views.add(self, self._on_settings)
        self.ends += [
            self._view.end,
            app.run.subscribe(self._on_run),
            app.every(LOOK_SECONDS, self._view.invalidate),  # while hidden, it waits until shown
        ]

    def _on_settings(self, paths: set[str] | None) -> None:
        if paths is None or "workspace_dir" in paths:
            self._look()

    def _on_run(self, state: RunState) -> None:
        if self._run != (run := (state.folder, state.is_running)):
            self._run = run
            self._view.invalidate()

    def _look(self) -> None:
        if self._is_looking:
            return
        self._is_looking = True
        settings, kept = self.app.settings, self.app.preferences
        workspace_dir, runs, files = settings.get("workspace_dir"), list(kept.runs), list(kept.recent)

        def show(found: Recent) -> None:
            self._is_looking = False
            if not self.winfo_exists():
                return
            kept.runs = [folder for folder in kept.runs if folder not in found.gone]
            self._show(found)
            if workspace_dir != settings.get("workspace_dir"):  # it has changed meanwhile
                self._look()

        def fail(error: Exception) -> None:
            self._is_looking = False
            raise error

        self.app.in_background(lambda: find_recent(workspace_dir, runs, files), show, fail)

    def _show(self, found: Recent) -> None:
        if self._shown is not None and (found.runs, found.files) == (self._shown.runs, self._shown.files):
            return
        before, self._shown = self._shown, found
        if before is not None and _rows_of(before) == _rows_of(found):
            for run in found.runs:  # how long ago it ended, or its step, which would else redraw all of the card
                for label, text in zip(self._lines[str(run.folder)], _lines_of(run), strict=True):
                    if label.cget("text") != text:
                        label.configure(text=text)
            return
        self.buttons.clear()
        self._lines.clear()
        for child in self._body.winfo_children():
            child.destroy()
        if not found.runs:
            self._add_text("No run yet. Start one, and it is listed here.")
        for run in found.runs:
            self._add_run(run)
        if found.files:
            title = ctk.CTkLabel(self._body, text="Settings files", font=self.app.theme.font(13, "bold"), anchor="w")
            title.grid(row=self._next_row(), column=0, sticky="w", pady=(10, 2))
        for path in found.files:
            open_file = partial(self.app.open_settings, path)
            self._add_row(path, (Path(path).name, str(Path(path).parent)), {"Open": open_file})

    def _add_run(self, run: RecentRun) -> None:
        actions: dict[str, Callable[[], object]] = {
            "Load settings": partial(self._load_settings, run.folder),
            run.action: partial(self._resume if run.action == "Resume" else self._open, run),
        }
        self._add_row(str(run.folder), _lines_of(run), actions, run.thumbnail)

    def _add_row(
        self,
        path: str,
        lines: Sequence[str],
        actions: dict[str, Callable[[], object]],
        thumbnail: Image.Image | None = None,
    ) -> None:
        """lines: its name, beside which the buttons are, and what is said about it."""
        theme = self.app.theme
        row = ctk.CTkFrame(self._body, fg_color="transparent")
        row.grid(row=self._next_row(), column=0, sticky="ew", pady=3)
        row.grid_columnconfigure(1, weight=1)
        if thumbnail is not None:
            picture = ctk.CTkImage(thumbnail, size=fit(thumbnail.size, SIDE))
            shown_picture = ctk.CTkLabel(row, text="", image=picture, width=SIDE, height=SIDE)
            shown_picture.grid(row=0, column=0, rowspan=len(lines), padx=(0, 8))
        labels = self._lines[path] = []
        for number, shown in enumerate(lines):
            colour, size = (Theme.muted, 12) if number else (Theme.text, 13)
            label = FittedLabel(row, text=shown, font=theme.font(size), text_color=colour, anchor="w", height=18)
            label.grid(row=number, column=1, columnspan=2 if number else 1, sticky="ew")
            Tooltip(label, theme, lambda: path)
            labels.append(label)
        bar = ctk.CTkFrame(row, fg_color="transparent")
        bar.grid(row=0, column=2, sticky="e", padx=(8, 0))
        for column, (action, command) in enumerate(actions.items()):
            button = ctk.CTkButton(bar, text=action, width=20, height=26, font=theme.font(12), command=command)
            if action == "Monitor":
                button.configure(fg_color=Theme.selected, hover_color=Theme.selected_hover, text_color=Theme.on_accent)
            button.grid(row=0, column=column, padx=(6 if column else 0, 0))
            self.buttons[path, action] = button

    def _add_text(self, text: str) -> None:
        label = FittedLabel(self._body, text=text, font=self.app.theme.font(12), text_color=Theme.muted, anchor="w")
        label.grid(row=self._next_row(), column=0, sticky="ew")

    def _next_row(self) -> int:
        return self._body.grid_size()[1]

    def _open(self, run: RecentRun) -> None:
        """Show a run, running or not, on the monitor."""
        if self.app.run.state.folder != run.folder:
            try:
                self.app.run.attach(run.folder, run.action == "Monitor")
            except UserError as error:
                self._refuse(error)
                return
        self.app.open_tab("monitor")

    def _resume(self, run: RecentRun) -> None:
        """Resume a run with its own settings."""
        if self.app.run.state.is_running:
            text = "A run is active: stop it before you resume another one."
            self.app.show_message(text, "warning", lambda: self.app.run.state.is_running)
        elif self._load_settings(run.folder):
            self.app.resume_run()

    def _load_settings(self, folder: Path) -> bool:
        """Load the settings of a run, to be written to its own folder again; returns whether that was possible."""
        try:
            self.app.settings.load_run(folder)
        except UserError as error:
            self._refuse(error)
            return False
        self.app.show_message(f"Loaded the settings of {folder.name}. Undo restores the earlier ones.", "info")
        return True

    def _refuse(self, error: UserError) -> None:
        """Say why a run can't be used, and drop it if it is gone."""
        self.app.show_message(str(error), "error")
        self._view.invalidate()


def _lines_of(run: RecentRun) -> tuple[str, str, str]:
    return run.name or run.folder.name, run.text, shown_path(run.folder)


def _rows_of(found: Recent) -> tuple:
    """All that is shown but for texts."""
    return [(run.folder, run.action, run.sample, run.thumbnail is None) for run in found.runs], found.files


def fit(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Width and height in the same ratio, the longer one `side`."""
    return round(size[0] * side / max(size)) or 1, round(size[1] * side / max(size)) or 1
