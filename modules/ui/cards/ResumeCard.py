"""The card with the runs in the workspace, which can be opened or resumed."""

from __future__ import annotations

import time
import tkinter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.errors import UserError
from modules.session.backups import BackupInfo, newest_usable
from modules.session.following import RunInfo, find_runs
from modules.session.RunFolder import RunFolder
from modules.ui.cards.Card import Card
from modules.ui.theme import Theme

if TYPE_CHECKING:
    from modules.ui.App import App

MAX_RUNS = 6
LOOK_SECONDS = 10.0


class ResumeCard(Card):
    """The newest runs beside the run folder of the settings; Open shows one, running or not. If the run folder itself
    has a usable backup of a run that has not finished, a button calls `resume`."""

    def __init__(self, parent: tkinter.Misc, app: App, resume: Callable[[], None]):
        super().__init__(parent, app, "Runs")
        self._resume = resume
        self._shown: tuple[list[RunInfo], BackupInfo | None] | None = None
        self._is_looking = False
        self.body = ctk.CTkFrame(self, fg_color="transparent", height=0)
        self.body.grid(row=1, column=0, sticky="ew", padx=12, pady=(0, 4))
        self.body.grid_columnconfigure(0, weight=1)
        view = app.views.add(self, self._on_settings)
        self.ends += [view.end, app.every(LOOK_SECONDS, view.invalidate)]  # while hidden, it waits until shown

    def _on_settings(self, paths: set[str] | None) -> None:
        if paths is None or "workspace_dir" in paths:
            self._look()

    def _look(self) -> None:
        if self._is_looking:
            return
        self._is_looking = True
        workspace_dir = self.app.settings.get("workspace_dir")

        def show(found: tuple[list[RunInfo], BackupInfo | None]) -> None:
            self._is_looking = False
            if not self.winfo_exists():
                return
            if workspace_dir == self.app.settings.get("workspace_dir"):
                self._show(found)
            else:  # the setting has changed meanwhile
                self._look()

        def fail(error: Exception) -> None:
            show(([], None))
            if not isinstance(error, UserError):  # an empty run folder, which its field reports
                raise error

        self.app.in_background(lambda: look(workspace_dir), show, fail)

    def _show(self, found: tuple[list[RunInfo], BackupInfo | None]) -> None:
        if found == self._shown:
            return
        self._shown = runs, backup = found
        for child in self.body.winfo_children():
            child.destroy()
        if backup is not None:
            name = Path(self.app.settings.get("workspace_dir")).name
            text = f"Resume {name} from step {backup.step:,}, {describe_time(backup.time)}"
            self._button(text, self._resume).grid(row=MAX_RUNS, column=0, columnspan=2, sticky="w", pady=(6, 0))
        if not runs:
            text = "No runs in the folder of the output folder yet. Runs that you start are listed here."
            self._label(text, 0, Theme.muted)
        for row, info in enumerate(runs):
            self._label(_describe(info), row, Theme.text)
            self._button("Open", partial(self._open, info)).grid(row=row, column=1, padx=(8, 0), pady=2)

    def _button(self, text: str, command: Callable[[], None]) -> ctk.CTkButton:
        return ctk.CTkButton(self.body, text=text, width=56, height=26, font=self.app.theme.font(12), command=command)

    def _label(self, text: str, row: int, colour: tuple[str, str]) -> None:
        label = ctk.CTkLabel(self.body, text=text, text_color=colour, font=self.app.theme.font(), anchor="w")
        label.configure(justify="left", wraplength=280)  # fits beside the button in the narrowest column
        label.grid(row=row, column=0, sticky="ew", pady=3)  # two lines stay apart from those below

    def _open(self, info: RunInfo) -> None:
        try:
            self.app.run.attach(info.folder, info.status == "running")
        except UserError as error:
            self.app.show_message(str(error), "error")
        else:
            self.app.show_message(f"Showing the run {info.folder.name}.", "info")


def look(workspace_dir: str) -> tuple[list[RunInfo], BackupInfo | None]:
    """The runs beside a run folder, and its own newest backup unless its run is active or has finished.

    Call it in a thread.
    """
    own = RunFolder(workspace_dir)
    runs = find_runs(own.path.parent)
    if any(info.folder == own.path and info.status in ("running", "finished") for info in runs):
        return runs[:MAX_RUNS], None
    return runs[:MAX_RUNS], newest_usable(own)


def _describe(info: RunInfo) -> str:
    """A line with name, status, step and time."""
    return f"{info.folder.name}: {info.status}, step {info.step:,}, {describe_time(info.time)}"


def describe_time(seconds: float) -> str:
    """A time of day, with the date if it is more than a day ago. seconds: Unix time."""
    return time.strftime("%H:%M" if time.time() - seconds < 86400 else "%d %b %H:%M", time.localtime(seconds))
