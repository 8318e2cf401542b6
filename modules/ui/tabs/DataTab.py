"""The data tab: how images and captions are prepared. The folders themselves are on the concepts tab."""

from __future__ import annotations

import tkinter
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.ui.widgets.form import CardSpec, SettingsPage

if TYPE_CHECKING:
    from modules.ui.App import App

CARDS = (
    CardSpec(
        "Size and shape",
        ("data.resolution", "data.resolutions", "data.bucketing", "data.bucket_step", "data.max_aspect",
            "data.no_upscale"),
    ),
    CardSpec("Captions", ("data.caption_dropout", "data.caption_variants")),
    CardSpec("Cached augmentations", ("data.augmentation_variants",)),
    CardSpec("Validation and skipped images", ("data.validation_share", "data.max_unreadable_share")),
    CardSpec("Loading", ("data.prefetch_steps",)),
)


class DataTab(ctk.CTkFrame):
    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, fg_color="transparent")
        self.page = SettingsPage(self, app, CARDS)
        self.page.pack(fill="both", expand=True)
