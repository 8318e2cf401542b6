"""The general tab: the folders of a run, the existing runs, and the window's appearance."""

from __future__ import annotations

import tkinter
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.describe import settings_by_path
from modules.ui.cards.PageCard import PageCard
from modules.ui.cards.ResumeCard import ResumeCard
from modules.ui.cards.WebhookAddress import WebhookAddress
from modules.ui.models.Preferences import APPEARANCES, MAX_SCALE, MIN_SCALE
from modules.ui.theme import Theme
from modules.ui.widgets.form import CardSpec, SettingsPage

if TYPE_CHECKING:
    from modules.ui.App import App

LOGGERS = ("tensorboard", "csv", *(path for path in settings_by_path() if path.startswith(("wandb.", "mlflow."))))
WEBHOOK = tuple(path for path in settings_by_path() if path.startswith("webhook."))
CARDS = (
    CardSpec("Run", ("workspace_dir", "cache_dir", "output.name", "seed", "keep_awake")),
    CardSpec("Logging", LOGGERS),
    CardSpec("Messages", WEBHOOK),
)
PRELOADS = (
    "Training and sampling start sooner. Waiting\n"
    "processes take about 0.4 GB of memory each\n"
    "and end after ten minutes without use."
)
SCALES = ("Match system", "80%", "90%", "100%", "110%", "125%", "150%", "175%", "200%")


class GeneralTab(ctk.CTkFrame):
    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, fg_color="transparent")

        def add_address(footer: ctk.CTkFrame) -> None:
            WebhookAddress(footer, app)

        page = SettingsPage(self, app, CARDS, {"Messages": add_address})
        page.pack(fill="both", expand=True)
        page.add_card(lambda: ResumeCard(page, app, app.resume_run), rows=6)
        page.add_card(lambda: LookCard(page, app), rows=8)
        page.add_card(lambda: PageCard(page, app), rows=8)


class LookCard(ctk.CTkFrame):
    """The window's colours and scale, and what it prepares."""

    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, fg_color=Theme.card, corner_radius=8)
        self.app = app
        self.grid_columnconfigure(1, weight=1)
        font = app.theme.font()
        title = ctk.CTkLabel(self, text="Window", font=app.theme.font(15, "bold"), anchor="w")
        title.grid(row=0, column=0, columnspan=2, sticky="ew", padx=12, pady=(8, 2))
        self.appearance = ctk.CTkOptionMenu(
            self, values=[name.capitalize() for name in APPEARANCES], font=font, command=self._set_appearance
        )
        self.appearance.set(app.preferences.appearance.capitalize())
        self.scale = ctk.CTkOptionMenu(self, values=list(SCALES), font=font, command=self._set_scale)
        self.scale.set(_scale_text(app.preferences.scale))
        for row, (text, widget) in enumerate((("Theme", self.appearance), ("Size", self.scale)), start=1):
            ctk.CTkLabel(self, text=text, font=font, anchor="w").grid(row=row, column=0, sticky="w", padx=(26, 8))
            widget.grid(row=row, column=1, sticky="ew", padx=(0, 12), pady=4)
        ctk.CTkLabel(self, text="Preload libraries", font=font, anchor="w").grid(
            row=3, column=0, sticky="w", padx=(26, 8)
        )
        self.preloads = ctk.CTkSwitch(self, text="", command=self._set_preloads)
        if app.preferences.preloads:
            self.preloads.select()
        self.preloads.grid(row=3, column=1, sticky="w", padx=(0, 12), pady=4)
        self._add_hint(4, PRELOADS, (0, 4))
        self._add_hint(
            5,
            "Ctrl+S save   Ctrl+Z undo   Ctrl+F search\nF5 start   Ctrl+Tab next tab   Space or Return press",
            (4, 4),
        )

        self.version = self._add_hint(6, "", (0, 10))
        app.in_background(_read_version, self._show_version)

    def _show_version(self, version: str) -> None:
        if self.winfo_exists():
            self.version.configure(text=f"Chorus {version}")

    def _add_hint(self, row: int, text: str, pady: tuple[int, int]) -> ctk.CTkLabel:
        hint = ctk.CTkLabel(self, text=text, font=self.app.theme.font(12), text_color=Theme.muted, justify="left")
        hint.grid(row=row, column=0, columnspan=2, sticky="w", padx=26, pady=pady)
        return hint

    def _set_preloads(self) -> None:
        self.app.preferences.preloads = bool(self.preloads.get())

    def _set_appearance(self, label: str) -> None:
        self.app.preferences.appearance = label.lower()
        self.app.theme.set_appearance(label.lower())

    def _set_scale(self, label: str) -> None:
        scale = None if label == SCALES[0] else int(label.removesuffix("%")) / 100
        self.app.preferences.scale = scale
        self.app.after_idle(lambda: self.app.theme.set_scale(scale))  # after the menu in use has been redrawn


def _read_version() -> str:
    from modules.machine.doctor.system import chorus_version  # with psutil, which the window does not need

    return chorus_version()


def _scale_text(scale: float | None) -> str:
    return SCALES[0] if scale is None else f"{round(min(max(scale, MIN_SCALE), MAX_SCALE) * 100)}%"
