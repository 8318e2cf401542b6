"""The bar below the tabs: problems, progress of the run, and the buttons to check, start and stop it."""

from __future__ import annotations

import tkinter
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.ui.models.run_text import counted, describe_progress, share_done
from modules.ui.models.RunState import RunState
from modules.ui.RunControl import RunControl
from modules.ui.theme import Theme
from modules.ui.widgets.fitting import FittedButton, FittedLabel
from modules.ui.widgets.Tooltip import Tooltip

if TYPE_CHECKING:
    from modules.ui.App import App

NARROW = 1080  # unscaled pixels, below which progress bar and status text no longer fit beside each other


class BottomBar(ctk.CTkFrame):
    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, fg_color=Theme.bar, corner_radius=0)
        self.app = app
        self.control = RunControl(app)
        self.grid_columnconfigure(1, weight=1)
        self._next_problem = 0
        self._is_narrow: bool | None = None
        self.problems = FittedButton(
            self, text="", height=26, anchor="w", fg_color="transparent", font=app.theme.font(), command=self.jump
        )
        self.problems.grid(row=0, column=0, columnspan=2, sticky="ew", padx=8, pady=(6, 0))
        Tooltip(self.problems, app.theme, self._all_problems)
        self.progress = ctk.CTkProgressBar(self, width=260, height=9)
        self.progress.set(0)
        self.status = FittedLabel(self, text="", font=app.theme.font(12), anchor="w")
        Tooltip(self.status, app.theme, lambda: self.status.cget("text") if self.status.is_cut else "")
        self._canvas.bind("<Configure>", lambda event: self._arrange(), add="+")
        self._arrange()
        self.check = self._button("Check", self.control.check, 3)
        self.start = self._button("Start training", self.control.start_or_stop, 4, width=140)
        self._unsubscribe = (app.settings.subscribe(self._settings_changed), app.run.subscribe(self.show_run))
        self.control.on_change = self.show_button
        self._settings_changed(set())
        self.show_run(app.run.state)

    def destroy(self) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self.control.close()
        super().destroy()

    def jump(self) -> None:
        """Show the field of the next problem, blocking ones first."""
        found = self.app.settings.problems()
        if found:
            self.app.flash(found[self._next_problem % len(found)].path)
            self._next_problem += 1

    def show_run(self, state: RunState) -> None:
        """Show the progress of the run."""
        self.progress.set(share_done(state))
        self.status.configure(text=describe_progress(state))
        self.show_button()

    def show_button(self) -> None:
        """Update the large button to what it does now."""
        text, is_stop, is_enabled = self.control.button()
        self.start.configure(
            text=text,
            state="normal" if is_enabled else "disabled",
            fg_color=Theme.stop if is_stop else Theme.start,
            hover_color=Theme.stop_hover if is_stop else Theme.start_hover,
            text_color=Theme.on_accent,
            text_color_disabled=Theme.on_accent,
        )

    def _settings_changed(self, paths: set[str]) -> None:
        found = self.app.settings.problems()
        blocking = sum(problem.blocking for problem in found)
        self._next_problem = 0
        text, colour = "No problems", Theme.muted
        if found:
            kinds = [counted(blocking, "problem")] if blocking else []
            kinds += [counted(len(found) - blocking, "warning")] if len(found) > blocking else []
            text = f"{', '.join(kinds)}: {found[0].message}"
            colour = Theme.error if blocking else Theme.warning
        self.problems.configure(text=text, text_color=colour)

    def _all_problems(self) -> str:
        return "\n".join(problem.message for problem in self.app.settings.problems()[:20])

    def _arrange(self) -> None:
        """Put the status text beside the progress bar, or below it in a narrow window."""
        is_narrow = 1 < self.winfo_width() < self.app.theme.scaled(NARROW)
        if is_narrow == self._is_narrow:
            return
        self._is_narrow = is_narrow
        if is_narrow:
            self.progress.grid(row=1, column=0, columnspan=2, sticky="ew", padx=14, pady=(4, 0))
            self.status.grid(row=2, column=0, columnspan=2, sticky="ew", padx=14, pady=(0, 4))
        else:
            self.progress.grid(row=1, column=0, columnspan=1, sticky="w", padx=14, pady=(2, 9))
            self.status.grid(row=1, column=1, columnspan=1, sticky="ew", padx=0, pady=(2, 9))

    def _button(self, text: str, command, column: int, width: int = 80) -> ctk.CTkButton:
        button = ctk.CTkButton(self, text=text, command=command, width=width, height=36, font=self.app.theme.font(14))
        button.grid(row=0, column=column, rowspan=3, padx=(0, 14 if column == 4 else 6))
        return button
