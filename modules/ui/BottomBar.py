"""The bar below the tabs: number of problems, progress of the run, and the buttons to check, start and stop it."""

from __future__ import annotations

import tkinter
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.visible_text import visible_line
from modules.ui.models.run_text import describe_progress, share_done
from modules.ui.models.RunState import RunState
from modules.ui.RunControl import RunControl
from modules.ui.theme import Theme
from modules.ui.widgets.ActivityBar import ActivityBar
from modules.ui.widgets.dialogs import open_window
from modules.ui.widgets.fitting import FittedLabel
from modules.ui.widgets.Tooltip import Tooltip
from modules.ui.windows.ProblemsWindow import ProblemsWindow, lead_to

if TYPE_CHECKING:
    from modules.ui.App import App
    from modules.ui.models.QueueModel import QueueView

NARROW = 1080  # unscaled pixels, below which progress bar and status text no longer fit beside each other


class BottomBar(ctk.CTkFrame):
    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, fg_color=Theme.bar, corner_radius=0)
        self.app = app
        self.control = RunControl(app)
        self.grid_columnconfigure(1, weight=1)
        self._is_narrow: bool | None = None
        line = ctk.CTkFrame(self, fg_color="transparent")
        line.grid(row=0, column=0, columnspan=2, sticky="w", padx=8, pady=(6, 0))
        self.problems = ctk.CTkButton(
            line, text="", width=20, height=26, fg_color="transparent", font=app.theme.font(), command=self.jump
        )
        self.problems.grid(row=0, column=0)
        Tooltip(self.problems, app.theme, self._first_problem)
        self.all_problems = ctk.CTkButton(line, text="Show all…", width=20, height=24, font=app.theme.font(12))
        self.all_problems.configure(command=lambda: open_window(app, ProblemsWindow))
        self.all_problems.grid(row=0, column=1, padx=(4, 0))
        self.progress = ActivityBar(self, app, width=260, height=9)
        self.status = FittedLabel(self, text="", font=app.theme.font(12), anchor="w")
        Tooltip(self.status, app.theme, lambda: self.status.cget("text") if self.status.is_cut else "")
        self._canvas.bind("<Configure>", lambda event: self._arrange(), add="+")
        self._arrange()
        self.check = self._button("Check", self.control.check, 3)
        self.queue = self._button("Add to queue", self.control.queue_run, 4, width=110)
        Tooltip(self.queue, app.theme, self._queue_hint)
        self.start = self._button("Start training", self.control.start_or_stop, 5, width=140)
        self._unsubscribe = (
            app.problems.subscribe(self.show_problems),
            app.run.subscribe(self.show_run),
            app.queue.subscribe(self.show_queue),
        )
        self.control.on_change = self.show_button
        self.show_problems()
        self.show_run(app.run.state)

    def destroy(self) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self.control.close()
        super().destroy()

    def jump(self) -> None:
        """Show the field of the first problem, blocking ones first."""
        if found := self.app.problems.all():
            lead_to(self.app, found[0])

    def show_run(self, state: RunState) -> None:
        """Show the progress of the run."""
        self.progress.show(share_done(state))
        self._show_status()
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

    def show_queue(self, view: QueueView) -> None:
        """Say whether the settings are added to the queue or saved to an entry of it."""
        _configure(self.queue, text="Add to queue" if self.app.queue.editing is None else "Save to queue")
        self._show_status()

    def show_problems(self) -> None:
        """Count the problems; what they are is said where they are solved, at the fields and in the list."""
        found = self.app.problems.all()
        colour = Theme.error if found and found[0].blocking else Theme.warning if found else Theme.muted
        _configure(self.problems, text=self.app.problems.count_text(), text_color=colour)
        self.all_problems.grid() if found else self.all_problems.grid_remove()

    def _show_status(self) -> None:
        """The progress of the run that the window follows; without one, of that which the queue trains."""
        state, running = self.app.run.state, self.app.queue.view.running
        text = describe_progress(state)
        if state.folder is None and running:
            text = visible_line(f"The queue trains {running[0].name}: {running[0].text}")
        _configure(self.status, text=text)

    def _queue_hint(self) -> str:
        editing = self.app.queue.editing
        return f"Save the settings to {editing.name}." if editing else "Train these settings later, or after others."

    def _first_problem(self) -> str:
        found = self.app.problems.all()
        return f"{found[0].message}\n\nClick to go there." if found else ""

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
        button.grid(row=0, column=column, rowspan=3, padx=(0, 14 if column == 5 else 6))
        return button


def _configure(widget: ctk.CTkBaseClass, **options) -> None:
    """Set what differs: drawing a button takes a millisecond, and this follows every key."""
    changed = {name: value for name, value in options.items() if widget.cget(name) != value}
    if changed:
        widget.configure(**changed)
