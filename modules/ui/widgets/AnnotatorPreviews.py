"""A few images, each with the caption or mask that a model proposes for it."""

from __future__ import annotations

import os
import tkinter as tk
from collections.abc import Sequence
from typing import TYPE_CHECKING

import customtkinter as ctk
from PIL import Image

from modules.config.visible_text import visible_line, visible_text
from modules.ui.models.decoding import PictureKey, decode_pictures
from modules.ui.theme import Theme
from modules.ui.widgets.fitting import wrap_to

if TYPE_CHECKING:
    from modules.ui.App import App
    from modules.ui.models.AnnotatorRun import Result

SIDE = 96  # of a thumbnail, in unscaled pixels
MAX_LETTERS = 1500  # of a caption


class AnnotatorPreviews(ctk.CTkFrame):
    """Grows with `add`; the thumbnails are decoded in threads."""

    def __init__(self, parent: tk.Misc, app: App):
        super().__init__(parent, fg_color="transparent", height=0)
        self.app = app
        self.pictures: list[ctk.CTkLabel] = []
        self.texts: list[ctk.CTkLabel] = []
        self._version = 0  # of what is shown, so that no thumbnail comes to another image
        self._rows: list[ctk.CTkFrame] = []
        self.grid_columnconfigure(0, weight=1)

    def clear(self) -> None:
        self._version += 1
        for row in self._rows:
            row.destroy()
        self.configure(height=0)  # a frame keeps the height of children that are gone
        self._rows, self.pictures, self.texts = [], [], []

    def add(self, results: Sequence[Result]) -> None:
        for result in results:
            self._add_row(result)

    def _add_row(self, result: Result) -> None:
        theme = self.app.theme
        row = ctk.CTkFrame(self)
        row.grid(row=len(self._rows), column=0, sticky="ew", pady=(0, 8))
        row.grid_columnconfigure(1, weight=1)
        row.grid_rowconfigure(1, weight=1)
        picture = ctk.CTkLabel(row, text="", width=SIDE, height=SIDE)
        picture.grid(row=0, column=0, rowspan=2, padx=10, pady=10, sticky="n")
        name = visible_line(os.path.basename(result.path))
        ctk.CTkLabel(row, text=name, font=theme.font(12), anchor="w", text_color=Theme.muted).grid(
            row=0, column=1, sticky="ew", pady=(8, 0)
        )
        text = visible_text(f"Failed: {result.failed}." if result.failed else result.text)[:MAX_LETTERS]
        color = Theme.error if result.failed else Theme.text
        label = ctk.CTkLabel(row, text=text, font=theme.font(), anchor="nw", justify="left", text_color=color)
        label.grid(row=1, column=1, sticky="new", padx=(0, 10), pady=(0, 10))
        wrap_to(row, label, theme, taken=SIDE + 32)
        self._rows.append(row)
        self.pictures.append(picture)
        self.texts.append(label)
        self._load(picture, result.path, result.mask)

    def _load(self, picture: ctk.CTkLabel, path: str, mask: str) -> None:
        version, scale = self._version, self.app.theme.scaled(100) / 100
        key = PictureKey(path, round(SIDE * scale), round(SIDE * scale), mask)

        def take(decoded: Sequence[tuple[PictureKey, Image.Image | str]]) -> None:
            image = decoded[0][1]
            if version != self._version or not self.winfo_exists() or isinstance(image, str):
                return
            size = round(image.width / scale), round(image.height / scale)
            picture.configure(image=ctk.CTkImage(image, size=size))

        self.app.in_background(lambda: decode_pictures([key]), take)
