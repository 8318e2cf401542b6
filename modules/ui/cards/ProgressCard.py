"""The progress of the run, and commands for it."""

from __future__ import annotations

import time
import tkinter
from functools import partial
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.errors import UserError
from modules.ui.cards.Card import Card
from modules.ui.keyboard import pressed_once
from modules.ui.models.run_text import describe_phase, describe_seconds, describe_warnings, share_done
from modules.ui.models.RunState import RunState
from modules.ui.theme import Theme
from modules.ui.widgets.ActivityBar import ActivityBar
from modules.ui.widgets.fitting import lay_in_rows

if TYPE_CHECKING:
    from modules.ui.App import App

FIGURES = ("Step", "Epoch", "Loss, smoothed", "Remaining", "Throughput", "Per rank")
CLOCK_SECONDS = 1.0
COMMANDS = {"sample": "Sample now", "backup": "Back up now", "save": "Save model now"}


class ProgressCard(Card):
    """Figures of the run, the progress of what it is doing, and buttons for requests to it."""

    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, app, "Progress")
        grid = ctk.CTkFrame(self, fg_color="transparent")
        grid.grid(row=1, column=0, sticky="ew", padx=12)
        grid.grid_columnconfigure((0, 1), weight=1, uniform="figures")
        self._values = {name: self._add_figure(grid, number, name) for number, name in enumerate(FIGURES)}
        self.phase = self.add_note(2)
        self._bar = ActivityBar(self, app, height=9)
        self._bar.grid(row=3, column=0, sticky="ew", padx=12, pady=(2, 6))
        self.warning = self.add_note(5)
        self.warning.configure(text_color=Theme.warning)
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=4, column=0, sticky="ew", padx=12, pady=(4, 2))
        self.buttons = {
            name: self._add_button(bar, text, pressed_once(partial(self._ask, name))) for name, text in COMMANDS.items()
        }
        self.folder = self._add_button(bar, "Open folder", self.open_run_folder)
        lay_in_rows(bar, [*self.buttons.values(), self.folder], app.theme, gap=8)
        self.ends += [app.run.subscribe(self.show), app.every(CLOCK_SECONDS, lambda: self.show(app.run.state))]
        self.show(app.run.state)

    def show(self, state: RunState) -> None:
        """Show the figures of the run; only what has changed is written."""
        self.show_title("Progress" if state.folder is None else f"Progress of {state.folder.name}")
        for name, text in figures(state).items():
            _write(self._values[name], text)
        _write(self.phase, describe_activity(state, time.time()))
        _write(self.warning, describe_warnings(state))
        self.warning.grid() if self.warning.cget("text") else self.warning.grid_remove()
        self._bar.show(share_done(state))
        can_ask = state.is_running and not state.is_stopping
        for button in self.buttons.values():
            _enable(button, can_ask)
        _enable(self.folder, state.folder is not None)

    def _ask(self, command: str) -> None:
        try:
            self.app.run.command(command)
        except UserError as error:
            self.app.show_message(str(error), "error")
        else:
            prompts = ", from the prompts that the run was started with" if command == "sample" else ""
            self.app.show_message(f"{COMMANDS[command]}: runs within two steps{prompts}.", "info")

    def _add_figure(self, grid: ctk.CTkFrame, number: int, name: str) -> ctk.CTkLabel:
        theme, (row, column) = self.app.theme, divmod(number, 2)
        label = ctk.CTkLabel(grid, text=name, font=theme.font(12), text_color=Theme.muted, anchor="w", height=18)
        label.grid(row=2 * row, column=column, sticky="w", pady=(6, 0))
        value = ctk.CTkLabel(grid, text="", font=theme.font(17, "bold"), anchor="w", height=24)
        value.grid(row=2 * row + 1, column=column, sticky="w")
        return value

    def _add_button(self, bar: ctk.CTkFrame, text: str, command) -> ctk.CTkButton:
        return ctk.CTkButton(bar, text=text, width=20, height=28, font=self.app.theme.font(12), command=command)


def figures(state: RunState) -> dict[str, str]:
    """The values of FIGURES; a dash for what is unknown."""
    speed = state.samples_per_second if state.is_running else None
    values = (
        f"{state.step:,} / {state.total:,}" if state.total else None,
        f"{state.epoch:,}" if state.step else None,
        None if state.smooth is None else f"{state.smooth:.4f}",
        describe_seconds(state.eta_seconds) if state.is_running and state.eta_seconds is not None else None,
        None if speed is None else f"{speed:.1f} images/s",
        None if speed is None else f"{speed / max(1, len(state.ranks)):.1f} images/s",
    )
    return {name: value or "-" for name, value in zip(FIGURES, values, strict=True)}


def describe_activity(state: RunState, now: float) -> str:
    """What the run is doing and for how long it has been running, or how it ended. now: Unix seconds."""
    if state.message or state.folder is None:
        return state.message or "No run yet"
    elapsed = state.elapsed(now)
    if elapsed is None:
        return describe_phase(state)
    time_text = describe_seconds(elapsed)
    return f"{describe_phase(state)}, {f'{time_text} since the start' if state.is_running else f'after {time_text}'}"


def _write(label: ctk.CTkLabel, text: str) -> None:
    if label.cget("text") != text:
        label.configure(text=text)


def _enable(button: ctk.CTkButton, is_enabled: bool) -> None:
    wanted = "normal" if is_enabled else "disabled"
    if button.cget("state") != wanted:
        button.configure(state=wanted)
