"""The runs in the workspace, to be shown again or gone on with."""

from __future__ import annotations

import time
import tkinter
from pathlib import Path
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.errors import UserError
from modules.session.following import RunInfo, find_runs
from modules.ui.theme import Theme

if TYPE_CHECKING:
    from modules.ui.App import App

MAX_RUNS = 6
LOOK_SECONDS = 10.0


class ResumeCard(ctk.CTkFrame):
    """The newest runs beside the run folder of the settings: Open shows one, running or not."""

    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, fg_color=Theme.card, corner_radius=8)
        self.app = app
        self._shown: list[RunInfo] | None = None
        self._is_looking = False
        self.grid_columnconfigure(0, weight=1)
        title = ctk.CTkLabel(self, text="Runs", font=app.theme.font(15, "bold"), anchor="w")
        title.grid(row=0, column=0, sticky="ew", padx=12, pady=(8, 2))
        self.body = ctk.CTkFrame(self, fg_color="transparent", height=0)
        self.body.grid(row=1, column=0, sticky="ew", padx=12, pady=(0, 12))
        self.body.grid_columnconfigure(0, weight=1)
        self._stop_looking = app.every(LOOK_SECONDS, self._look)
        self.bind("<Map>", lambda event: self._look(), add="+")

    def weight(self) -> float:
        """Its length in rows."""
        return 2.5 + len(self._shown or ())

    def destroy(self) -> None:
        self._stop_looking()
        super().destroy()

    def _look(self) -> None:
        if self._is_looking or not self.winfo_viewable():
            return
        self._is_looking = True
        workspace = Path(self.app.settings.get("workspace_dir")).expanduser().absolute().parent
        self.app.in_background(lambda: find_runs(workspace)[:MAX_RUNS], self._show, self._fail)

    def _fail(self, error: Exception) -> None:
        self._is_looking = False
        self._show([])

    def _show(self, runs: list[RunInfo]) -> None:
        self._is_looking = False
        if runs == self._shown or not self.winfo_exists():
            return
        self._shown = runs
        for child in self.body.winfo_children():
            child.destroy()
        if not runs:
            text = "No run yet beside the run folder. Start the training, and it will be listed here."
            self._label(text, 0, Theme.muted)
        for row, info in enumerate(runs):
            self._label(describe_run(info), row, Theme.text)
            button = ctk.CTkButton(
                self.body,
                text="Open",
                width=56,
                height=26,
                font=self.app.theme.font(12),
                command=lambda info=info: self._open(info),
            )
            button.grid(row=row, column=1, padx=(8, 0), pady=2)

    def _label(self, text: str, row: int, colour: tuple[str, str]) -> None:
        label = ctk.CTkLabel(self.body, text=text, text_color=colour, font=self.app.theme.font(), anchor="w")
        label.configure(justify="left", wraplength=280)  # fits beside the button into the narrowest column
        label.grid(row=row, column=0, sticky="ew")

    def _open(self, info: RunInfo) -> None:
        try:
            self.app.run.attach(info.folder)
        except UserError as error:
            self.app.show_message(str(error), "error")
        else:
            self.app.show_message(f"Showing the run {info.folder.name}.", "info")


def describe_run(info: RunInfo) -> str:
    """One line: name, how it ended, step and time."""
    day = time.strftime("%H:%M" if time.time() - info.time < 86400 else "%d %b %H:%M", time.localtime(info.time))
    return f"{info.folder.name}: {info.status}, step {info.step:,}, {day}"
