"""The model tab: the base model, its parts and precision, and how the result is saved."""

from __future__ import annotations

import tkinter
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.families import FamilyInfo, load_families
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import open_window
from modules.ui.widgets.fitting import wrap_to
from modules.ui.widgets.form import CardSpec, SettingsPage
from modules.ui.windows.BaseModelWindow import BaseModelWindow

if TYPE_CHECKING:
    from modules.ui.App import App

CARDS = (
    CardSpec(
        "Base model",
        ("family", "model.base", "model.config_folder", "model.prediction_type", "model.zero_terminal_snr"),
    ),
    CardSpec(
        "Precision and memory",
        (
            "model.weight_dtype",
            "model.denoiser_quantization",
            "model.text_encoder_quantization",
            "model.mixed_precision",
            "model.tf32",
            "model.gradient_checkpointing",
            "model.compile",
            "model.channels_last",
        ),
    ),
    CardSpec(
        "Output",
        (
            "output.name",
            "output.format",
            "output.dtype",
            "output.save_ema",
            "output.unit",
            "output.every",
            "output.fallback_dir",
            "output.wait_minutes",
        ),
        {"output.unit": "Save while training"},
    ),
)


class ModelTab(ctk.CTkFrame):
    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, fg_color="transparent")
        self.app = app
        self.page = SettingsPage(self, app, CARDS, {"Base model": self._add_facts})
        self.page.pack(fill="both", expand=True)
        self._ends = [app.settings.subscribe(self._changed), app.checks.subscribe(self._show_base)]

    def _add_facts(self, footer: ctk.CTkFrame) -> None:
        font = self.app.theme.font(12)
        self.parts, self.found = (
            ctk.CTkLabel(footer, text="", font=font, text_color=Theme.muted, anchor="w", justify="left")
            for _ in range(2)
        )
        for label in (self.parts, self.found):
            label.pack(fill="x", pady=(2, 0))
            wrap_to(footer, label, self.app.theme, taken=4)
        find = ctk.CTkButton(footer, text="Find a model…", width=20, height=26, font=font, command=self.find_model)
        find.pack(anchor="w", pady=(6, 0))
        self._changed({"family"})
        self._show_base()

    def find_model(self) -> BaseModelWindow:
        """Open the window with recent models, those on this machine and those of the Hub."""
        return open_window(self.app, BaseModelWindow)

    def destroy(self) -> None:
        for end in self._ends:
            end()
        super().destroy()

    def _changed(self, paths: set[str]) -> None:
        if "family" in paths and self.page.cards:  # the labels are created with the first card
            self.parts.configure(text=describe_parts(load_families()[self.app.settings.get("family")]))

    def _show_base(self) -> None:
        if self.page.cards:
            self.found.configure(text=self.app.checks.base_text)


def describe_parts(family: FamilyInfo) -> str:
    """The components of the family's models, and their approximate size."""
    encoders = f"{len(family.text_encoders)} text encoder" + ("s" if len(family.text_encoders) > 1 else "")
    size = family.typical_bytes / 2**30
    return f"{family.label}: {', '.join(family.denoisers)}, {encoders}, autoencoder; about {size:.0f} GiB in float32."
