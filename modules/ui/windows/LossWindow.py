"""The window with the loss curve."""

from __future__ import annotations

from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.ui.widgets.dialogs import set_size, show_over
from modules.ui.widgets.LossChart import LossChart

if TYPE_CHECKING:
    from modules.ui.App import App


class LossWindow(ctk.CTkToplevel):
    def __init__(self, app: App):
        super().__init__(app.root)
        self.title("Loss")
        set_size(self, "760x420", (400, 240))
        self.bind("<Escape>", lambda event: self.destroy())
        LossChart(self, app).pack(fill="both", expand=True, padx=10, pady=10)
        show_over(app, self)
