"""The lower end of a window in which a model works on images: what it does, its progress, and the buttons for it."""

from __future__ import annotations

import os
import tkinter as tk
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import customtkinter as ctk

from modules.config.errors import UserError
from modules.config.labels import with_labels
from modules.config.visible_text import visible_line, visible_text
from modules.ui.keyboard import pressed_once
from modules.ui.theme import Theme
from modules.ui.widgets.fitting import wrap_to

if TYPE_CHECKING:
    from modules.ui.App import App
    from modules.ui.models.AnnotatorRun import AnnotatorRun, Progress, Result

POLL_SECONDS = 0.3
MAX_LETTERS = 500


class AnnotatorPanel(ctk.CTkFrame):
    """make_run: a run of what is chosen, a preview or not; None if the person has decided against it. It may raise
    UserError. undo: takes back all that the last run has written; it may raise UserError. close: the window.

    on_preview: called with no results when a preview starts, then with each few that come. on_written: called with the
    paths of images whose files were written. on_progress: called with a short text while a run works, then with "".
    """

    def __init__(
        self,
        parent: tk.Misc,
        app: App,
        make_run: Callable[[bool], AnnotatorRun | None],
        undo: Callable[[], None],
        close: Callable[[], None],
        on_preview: Callable[[Sequence[Result]], None],
        on_written: Callable[[Collection[str]], None],
        on_progress: Callable[[str], None],
    ):
        super().__init__(parent, fg_color="transparent")
        self.app = app
        self.run: AnnotatorRun | None = None  # at work
        self._failure = ""  # the last image that has failed, and why
        self._make_run, self._undo = make_run, undo
        self._on_preview, self._on_written, self._on_progress = on_preview, on_written, on_progress
        self.grid_columnconfigure(0, weight=1)
        self.state = ctk.CTkLabel(self, text="", font=app.theme.font(), anchor="w", justify="left")
        self.state.grid(row=0, column=0, sticky="ew", padx=4)
        wrap_to(self, self.state, app.theme)
        self.bar = ctk.CTkProgressBar(self, height=9)
        self.bar.grid(row=1, column=0, sticky="ew", padx=4, pady=(4, 0))
        self.bar.grid_remove()
        self._build_buttons(close)
        self._end = app.every(POLL_SECONDS, self._follow)

    # --- public methods ----------------------------------------------------------------------------------------------

    def start(self, preview: bool = False) -> None:
        """Start a run, or cancel the one that works."""
        if self.run is not None:
            self.cancel()
            return
        try:
            run = self._make_run(preview)
        except UserError as error:
            self.tell(str(error), is_wrong=True)
            return
        if run is None:
            return
        self.run, self._failure = run, ""
        if preview:
            self._on_preview(())
        self.buttons["undo"].configure(state="disabled")
        self.buttons["preview"].configure(state="disabled")
        self.buttons["start"].configure(text="Cancel")
        self.bar.set(0)
        self.bar.grid()
        self._follow()
        self.app.in_background(run.run, lambda progress: self._take_end(run), lambda error: self._fail(run, error))

    def cancel(self) -> None:
        """End the run after the image that it is at."""
        if self.run is not None:
            self.run.cancel()
            self.buttons["start"].configure(state="disabled")
            self.tell("Ending…")

    def take_back(self) -> None:
        """Undo what the last run has written."""
        try:
            self._undo()
        except UserError as error:
            self.tell(str(error), is_wrong=True)
        else:
            self.tell("Taken back.")

    def tell(self, text: str, is_wrong: bool = False) -> None:
        text = visible_text(with_labels(text))[:MAX_LETTERS]
        self.state.configure(text=text, text_color=Theme.error if is_wrong else Theme.text)

    # --- a run -------------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Show what the run has done meanwhile."""
        run = self.run
        if run is None:
            return
        self._take_results(run)
        progress = run.progress
        self.bar.set(progress.share)
        if not run.is_canceled:
            self.tell(progress.describe())
        self._on_progress(progress.describe())

    def _take_results(self, run: AnnotatorRun) -> None:
        results = run.take_results()
        failed = (f"{os.path.basename(one.path)}: {one.failed}" for one in reversed(results) if one.failed)
        self._failure = visible_line(next(failed, self._failure))
        if run.preview and results:
            self._on_preview(results)
        if written := {result.path for result in results if result.is_written}:
            self._on_written(written)

    def _take_end(self, run: AnnotatorRun) -> None:
        if not self._finish(run):
            return
        progress: Progress = run.progress
        failures = f" The last to fail was {self._failure}." if self._failure else ""
        self.tell(progress.summary(run.is_canceled, bool(run.preview)) + failures, is_wrong=bool(progress.failed))

    def _fail(self, run: AnnotatorRun, error: Exception) -> None:
        is_shown = self._finish(run)
        if not isinstance(error, UserError):
            raise error
        if is_shown:
            self.tell(str(error), is_wrong=True)

    def _finish(self, run: AnnotatorRun) -> bool:
        """Whether there is still a window that shows the end of the run."""
        if run is not self.run or not self.winfo_exists():
            return False
        self._take_results(run)
        self.run = None
        self.bar.grid_remove()
        self.buttons["start"].configure(text="Start", state="normal")
        self.buttons["preview"].configure(state="normal")
        if run.progress.written:
            self.buttons["undo"].configure(state="normal")
        self._on_progress("")
        return True

    # --- widgets -----------------------------------------------------------------------------------------------------

    def _build_buttons(self, close: Callable[[], None]) -> None:
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=2, column=0, sticky="e", pady=(8, 0))
        accent: dict[str, Any] = {
            "fg_color": Theme.selected, "hover_color": Theme.selected_hover, "text_color": Theme.on_accent
        }  # fmt: skip
        self.buttons: dict[str, ctk.CTkButton] = {}
        for name, text, command, colours in (
            ("undo", "Undo all", self.take_back, {}),
            ("close", "Close", close, {}),
            ("preview", "Preview", pressed_once(lambda: self.start(preview=True)), {}),
            ("start", "Start", pressed_once(self.start), accent),
        ):
            button = ctk.CTkButton(bar, text=text, width=90, font=self.app.theme.font(), command=command, **colours)
            button.grid(row=0, column=len(self.buttons), padx=(8 if self.buttons else 0, 0))
            self.buttons[name] = button
        self.buttons["undo"].configure(state="disabled")

    def destroy(self) -> None:
        self._end()
        if self.run is not None:
            self.run.cancel()
        super().destroy()
