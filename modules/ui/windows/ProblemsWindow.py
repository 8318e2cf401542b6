"""The window with everything that would stop or spoil the next run, and what would solve it."""

from __future__ import annotations

import tkinter
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.labels import label_of
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import focus_soon, open_window, set_size, show_over
from modules.ui.widgets.fitting import wrap_to
from modules.ui.widgets.Page import Page

if TYPE_CHECKING:
    from modules.config.problems import Problem
    from modules.ui.App import App

BUTTONS_WIDTH = 16  # unscaled pixels around the text of a row


def lead_to(app: App, problem: Problem) -> None:
    """Show the images of a problem in the dataset window, else the field of its setting, else the list of all."""
    if problem.images:
        from modules.ui.windows.DatasetWindow import open_dataset  # which takes long to import

        what = problem.message.rstrip(".")
        open_dataset(app, None).pick(problem.images, what[:1].upper() + what[1:])
    elif problem.path:
        app.flash(problem.path)
    else:
        open_window(app, ProblemsWindow)


class ProblemsWindow(ctk.CTkToplevel):
    """The problems one below the other, blocking ones first. It follows the list, and is hidden rather than destroyed,
    because CustomTkinter never frees a scrollable frame."""

    def __init__(self, app: App):
        super().__init__(app.root)
        self.app = app
        self.title("Problems")
        self.transient(app.root)
        set_size(self, "640x420", (420, 240))
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(1, weight=1)
        self.heading = ctk.CTkLabel(self, text="", font=app.theme.font(15, "bold"), anchor="w")
        self.heading.grid(row=0, column=0, sticky="ew", padx=16, pady=(14, 6))
        self._page = Page(self)
        self._page.grid(row=1, column=0, sticky="nsew", padx=8)
        self._page.grid_columnconfigure(0, weight=1)
        close = ctk.CTkButton(self, text="Close", width=90, font=app.theme.font(), command=self.close)
        close.grid(row=2, column=0, sticky="e", padx=16, pady=(8, 14))
        self.rows: list[ProblemRow] = []
        self._unsubscribe = app.problems.subscribe(self.show)
        self.bind("<Escape>", lambda event: self.close())
        self.protocol("WM_DELETE_WINDOW", self.close)
        self.show()
        show_over(app, self)
        focus_soon(app, close._canvas)

    def close(self) -> None:
        tkinter.Toplevel.withdraw(self)
        self.app.root.focus_set()

    def destroy(self) -> None:
        self._unsubscribe()
        super().destroy()

    def show(self) -> None:
        """Show the list as it is now."""
        problems = self.app.problems.all()
        self.heading.configure(text=self.app.problems.count_text())
        while len(self.rows) < len(problems):
            self.rows.append(ProblemRow(self._page, self.app))
        for number, row in enumerate(self.rows):
            if number < len(problems):
                row.show(problems[number])
                row.grid(row=number, column=0, sticky="ew", padx=4, pady=4)
            else:
                row.grid_remove()


class ProblemRow(ctk.CTkFrame):
    """One problem: the label of its setting, what is wrong, and buttons that solve it and lead to the field."""

    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, fg_color=Theme.card, corner_radius=8)
        self.app = app
        self.problem: Problem | None = None
        self.grid_columnconfigure(0, weight=1)
        self.label = ctk.CTkLabel(self, text="", font=app.theme.font(13, "bold"), anchor="w", height=20)
        self.label.grid(row=0, column=0, sticky="ew", padx=12, pady=(8, 0))
        self.text = ctk.CTkLabel(self, text="", font=app.theme.font(), anchor="w", justify="left")
        self.text.grid(row=1, column=0, sticky="ew", padx=12, pady=(2, 4))
        wrap_to(self, self.text, app.theme, taken=24 + BUTTONS_WIDTH)
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=2, column=0, sticky="w", padx=12, pady=(0, 10))
        self.remedy = ctk.CTkButton(
            bar,
            text="",
            width=44,
            height=26,
            font=app.theme.font(12),
            command=self._apply,
            fg_color=Theme.selected,
            hover_color=Theme.selected_hover,
            text_color=Theme.on_accent,
        )
        self.remedy.grid(row=0, column=0, padx=(0, 8))
        self.go = ctk.CTkButton(bar, text="Go to setting", width=44, height=26, font=app.theme.font(12))
        self.go.configure(command=self._go)
        self.go.grid(row=0, column=1)

    def show(self, problem: Problem) -> None:
        if problem == self.problem:
            return
        self.problem = problem
        colour = Theme.error if problem.blocking else Theme.warning
        mark, kind = ("✕", "Problem") if problem.blocking else ("!", "Warning")
        label = label_of(problem.path) or kind
        self.label.configure(text=f"{mark} {label}", text_color=colour)
        self.text.configure(text=problem.message)
        if problem.remedy is not None:
            self.remedy.configure(text=problem.remedy.text)
        self.go.configure(text="Show images" if problem.images else "Go to setting")
        has_place = bool(problem.images or problem.path)
        for button, is_shown in ((self.remedy, problem.remedy is not None), (self.go, has_place)):
            button.grid() if is_shown else button.grid_remove()

    def _go(self) -> None:
        if self.problem is not None:
            lead_to(self.app, self.problem)

    def _apply(self) -> None:
        if self.problem is not None and self.problem.remedy is not None:
            self.app.problems.apply(self.problem.remedy)
