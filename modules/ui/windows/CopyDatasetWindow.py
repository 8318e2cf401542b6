"""The window that writes a cleaned copy of a concept's images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import customtkinter as ctk

from modules.ui.theme import Theme
from modules.ui.widgets.fitting import wrap_to
from modules.ui.windows.FolderWindow import FolderWindow

TEXT = (
    "Copies what trains, with captions, masks and reference images. Images that are left out stay behind, crops are "
    "cut, and the original stays as it is."
)


class CopyDatasetWindow(FolderWindow):
    script = "copy_dataset.py"
    heading = "Cleaned copy"
    suffix = "-clean"
    size = "680x320"

    def build_choices(self) -> None:
        font = self.app.theme.font()
        text = ctk.CTkLabel(self.card, text=TEXT, font=font, anchor="w", justify="left", text_color=Theme.muted)
        text.grid(row=1, column=0, columnspan=3, sticky="ew", padx=12, pady=(0, 8))
        wrap_to(self.card, text, self.app.theme)
        label = "Leave out near-duplicates of better images, and damaged images"
        self.drops = ctk.CTkCheckBox(self.card, text=label, font=font)
        self.drops.grid(row=2, column=0, columnspan=3, sticky="w", padx=12, pady=(0, 8))

    def options(self) -> list[str]:
        return ["--drop-duplicates"] if self.drops.get() else []

    def actions(self) -> Sequence[tuple[str, Any]]:
        return (("Train the copy", self.replace_concept),)
