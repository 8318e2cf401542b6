"""The dataset check: problems and oddities of images and captions, with the images concerned."""

from __future__ import annotations

import os
from tkinter import ttk
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.labels import with_labels
from modules.data.image_formats import EXTENSIONS
from modules.data.videos import EXTENSIONS as VIDEO_EXTENSIONS
from modules.ui.keyboard import pressed_once
from modules.ui.models.DataCheck import DataCheck, DataFinding, DataReport
from modules.ui.models.typed_text import WRONG_SETTING
from modules.ui.widgets.dialogs import set_size, show_over
from modules.ui.widgets.fitting import fit_columns, wrap_to
from modules.ui.widgets.scrolling import make_scrollbar
from modules.ui.widgets.Thumbnails import Thumbnails
from modules.ui.widgets.Tooltip import Tooltip
from modules.ui.windows.DatasetWindow import open_dataset

if TYPE_CHECKING:
    from modules.ui.App import App

LEVELS = {"error": "error", "warning": "warning", "note": "note"}


class HealthWindow(ctk.CTkToplevel):
    """`check` checks the dataset; the check can be repeated with every image fully decoded, or cancelled.

    Closing only hides the window, because CustomTkinter never frees one completely.
    """

    def __init__(self, app: App):
        super().__init__(app.root, fg_color=app.theme.page)
        self.app = app
        self.report: DataReport | None = None
        self._check: DataCheck | None = None
        self._stop_listening = app.theme.on_change(self._restyle)
        self.title("Dataset check")
        set_size(self, "980x640", (600, 400))
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure((1, 2), weight=1)
        self._build_bar()
        self._build_findings()
        self.thumbnails = Thumbnails(self, app, side=96)
        self.thumbnails.grid(row=2, column=0, sticky="nsew", padx=10, pady=(0, 10))
        self.bind("<Escape>", lambda event: self.hide())
        self.protocol("WM_DELETE_WINDOW", self.hide)
        show_over(app, self)

    def check(self) -> None:
        """Start a check, unless one is running."""
        if self._check is None:
            self.start()

    def hide(self) -> None:
        self._cancel()
        self.withdraw()

    def start(self) -> None:
        """Check the current settings."""
        config = self.app.settings.config()
        if config is None:
            self._state.configure(text=WRONG_SETTING)
            return
        shape = self.app.devices.shape(config)
        num_ranks = shape.num_ranks if shape else 1  # unknown while the GPUs are unknown or can't train these settings
        self._check = check = DataCheck(config, num_ranks, bool(self._decode.get()))
        self._state.configure(text="Checking the images and captions…")
        self._button.configure(text="Cancel")
        self.app.in_background(
            check.run, lambda report: self._show(check, report), lambda error: self._tell_failure(check, error)
        )

    def _toggle(self) -> None:
        if self._check is None:
            self.start()
        else:
            self._cancel()

    def _cancel(self) -> None:
        """Cancel the check at once, without waiting for its process to end."""
        if self._check is not None:
            self._check.cancel()
            self._end_check("The check was cancelled.")

    def _show(self, check: DataCheck, report: DataReport | None) -> None:
        if check is not self._check or report is None:  # cancelled
            return
        self.report = report
        found = len(report.findings)
        verdict = f"{counted(found, 'thing')} found" if found else "nothing unusual"
        if not report.can_train:
            verdict = "training can't start"
        self._end_check(f"{counted(report.num_pictures, 'image')}: {verdict}.")
        self.tree.delete(*self.tree.get_children())
        for number, finding in enumerate(report.findings):
            values = LEVELS.get(finding.level, finding.level), with_labels(finding.message)
            self.tree.insert("", "end", iid=str(number), values=values, tags=(finding.level,))
        self.thumbnails.show(())
        self.show_button.configure(state="disabled")
        if report.findings:
            self.tree.selection_set("0")
            self.tree.focus("0")

    def _tell_failure(self, check: DataCheck, error: Exception) -> None:
        if check is self._check:
            self._end_check(str(error) if isinstance(error, UserError) else "The check has failed.")
        if not isinstance(error, UserError):
            raise error

    def _end_check(self, text: str) -> None:
        self._check = None
        self._state.configure(text=text)
        self._button.configure(text="Check again")

    def _show_finding(self, finding: DataFinding) -> None:
        """Show a finding's full text, and its images below."""
        self._detail.configure(text=with_labels(finding.message))
        paths = images_of(finding)
        self.thumbnails.show(paths)
        self.show_button.configure(state="normal" if paths else "disabled")

    def show_images(self) -> None:
        """Show the images of the chosen finding in the dataset window, where they can be edited and left out."""
        finding = self._finding
        if finding is not None and (paths := images_of(finding)):
            count = counted(len(paths), "image")
            open_dataset(self.app, None).pick(paths, f"{count} of the dataset check")

    # --- widgets -----------------------------------------------------------------------------------------------------

    def _build_bar(self) -> None:
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=0, column=0, sticky="ew", padx=10, pady=10)
        bar.grid_columnconfigure(1, weight=1)
        self._button = ctk.CTkButton(bar, text="Check", width=110, command=pressed_once(self._toggle))
        self._button.grid(row=0, column=0)
        self._decode = ctk.CTkCheckBox(bar, text="Fully decode every image (slower)")
        self._decode.grid(row=0, column=1, sticky="w", padx=12)
        self.show_button = ctk.CTkButton(bar, text="Show images", width=110, state="disabled", command=self.show_images)
        self.show_button.grid(row=0, column=2)
        hint = "Show the images of the selected issue in the dataset window, where they can be edited and left out."
        Tooltip(self.show_button, self.app.theme, lambda: hint)
        self._state = ctk.CTkLabel(bar, text="", text_color=self.app.theme.muted, anchor="w", justify="left")
        wrap_to(bar, self._state, self.app.theme)
        self._state.grid(row=1, column=0, columnspan=3, sticky="ew", pady=(6, 0))

    def _build_findings(self) -> None:
        card = ctk.CTkFrame(self)
        card.grid(row=1, column=0, sticky="nsew", padx=10, pady=(0, 10))
        card.grid_columnconfigure(0, weight=1)
        card.grid_rowconfigure(0, weight=1)
        self.tree = ttk.Treeview(card, columns=("level", "message"), show="headings", selectmode="browse", height=4)
        self.tree.heading("level", text="Severity", anchor="w")
        self.tree.heading("message", text="Issue", anchor="w")
        widths = {"level": 130, "message": 400}
        self._fit_columns = fit_columns(self.tree, widths, self.app.theme, stretched="message")
        self.tree.grid(row=0, column=0, sticky="nsew", padx=(8, 0), pady=8)
        make_scrollbar(card, self.tree, row=0, column=1)
        self.tree.bind("<<TreeviewSelect>>", lambda event: self._on_select())
        self._detail = ctk.CTkLabel(card, text="", anchor="w", justify="left")
        wrap_to(card, self._detail, self.app.theme)
        self._detail.grid(row=1, column=0, columnspan=2, sticky="ew", padx=12, pady=(0, 8))
        self._restyle()

    def _restyle(self) -> None:
        theme = self.app.theme
        self._fit_columns()
        for level, colour in (("error", theme.error), ("warning", theme.warning), ("note", theme.text)):
            self.tree.tag_configure(level, foreground=theme.now(colour))

    def _on_select(self) -> None:
        if (finding := self._finding) is not None:
            self._show_finding(finding)

    @property
    def _finding(self) -> DataFinding | None:
        """The chosen one."""
        chosen = self.tree.selection()
        return self.report.findings[int(chosen[0])] if chosen and self.report is not None else None

    def destroy(self) -> None:
        self._stop_listening()
        self._cancel()
        super().destroy()


def images_of(finding: DataFinding) -> list[str]:
    """Those of its files that are images or videos."""
    shown = EXTENSIONS | VIDEO_EXTENSIONS
    return [path for path in finding.paths if os.path.splitext(path)[1].lower() in shown]
