"""A few images, each with the caption or mask that a model proposes for it."""

from __future__ import annotations

import os
import tkinter as tk
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import customtkinter as ctk
from PIL import Image

from modules.config.visible_text import visible_line, visible_text
from modules.ui.models.decoding import PictureKey, decode_pictures
from modules.ui.theme import Theme
from modules.ui.widgets.scrolling import page_around, scroll_to
from modules.ui.widgets.Tooltip import Tooltip

if TYPE_CHECKING:
    from modules.ui.App import App
    from modules.ui.models.AnnotatorRun import Result

SIDE = 216  # of an image, in unscaled pixels, as are all of these
BUTTON = SIDE + 16  # that an image is in
PAD, GAP = 8, 8  # around an image, between two of them
LEAST_LARGE = 2 * SIDE  # height of an enlarged one, though it may be more than what is in sight of the window
SCROLL_MS = 200  # after which an image that was enlarged is laid out
MIN_TEXT = 80  # width of a text: narrower lines would break words
MAX_LETTERS = 1500  # of a caption


class AnnotatorPreviews(ctk.CTkFrame):
    """Grows with `add`. Captions stand beside their images; images with masks are side by side. One that is clicked is
    enlarged to the width of the window, and small again by another click."""

    def __init__(self, parent: tk.Misc, app: App):
        super().__init__(parent, fg_color="transparent", height=0)
        self.app = app
        self.items: list[_Preview] = []
        self._laid: list[object] = []
        self._num_columns = 0
        self._canvas.bind("<Configure>", lambda event: self._lay(), add="+")
        self._stop_listening = app.theme.on_change(self._lay)

    @property
    def pictures(self) -> list[ctk.CTkButton]:
        return [item.picture for item in self.items]

    @property
    def texts(self) -> list[ctk.CTkLabel]:
        return [item.text for item in self.items]

    def clear(self) -> None:
        for item in self.items:
            item.destroy()
        self.items, self._laid = [], []
        self.configure(height=0)  # a frame keeps the height of children that are gone

    def add(self, results: Sequence[Result]) -> None:
        self.items += [_Preview(self, self.app, result, self._lay) for result in results]
        self._lay()

    def _lay(self) -> None:
        """Arrange the images in the width that there is."""
        width = self.winfo_width() / self.app.theme.scaled(100) * 100
        state = [width, *((id(item), item.is_large) for item in self.items)]
        if width <= 1 or state == self._laid:
            return
        self._laid = state
        has_masks = any(item.result.mask for item in self.items)
        cell = SIDE + 2 * PAD
        columns = max(1, min(len(self.items), int((width + GAP) // (cell + GAP)))) if has_masks else 1
        for column in range(max(columns, self._num_columns)):
            is_used = column < columns
            self.grid_columnconfigure(column, weight=int(is_used), uniform="preview" if is_used else "")
        self._num_columns = columns
        row = column = 0
        for item in self.items:
            if item.is_large and column:
                row, column = row + 1, 0
            span = columns if item.is_large else 1
            item.grid(
                row=row, column=column, columnspan=span, sticky="nsew", pady=(0, GAP),
                padx=(GAP if column else 0, 0),
            )  # fmt: skip
            item.lay(width if item.is_large else (width - GAP * (columns - 1)) / columns, is_beside=not has_masks)
            column += span
            if column >= columns:
                row, column = row + 1, 0

    def destroy(self) -> None:
        self._stop_listening()
        super().destroy()


class _Preview(ctk.CTkFrame):
    """An image with what was made of it. on_change: called when it is to be larger or smaller."""

    def __init__(self, parent: tk.Misc, app: App, result: Result, on_change: Callable[[], None]):
        super().__init__(parent)
        self.app, self.result, self._on_change = app, result, on_change
        self.is_large = False
        self._shown = (0, 0)  # the size that was asked for
        theme = app.theme
        self.picture = ctk.CTkButton(
            self, text="", width=SIDE, height=SIDE, border_spacing=2, fg_color="transparent", command=self.toggle
        )
        Tooltip(self.picture, theme, lambda: "Make it small again." if self.is_large else "Enlarge it.")
        name = visible_line(os.path.basename(result.path))
        self._name = ctk.CTkLabel(self, text=name, font=theme.font(12), anchor="w", text_color=Theme.muted)
        text = visible_text(f"Failed: {result.failed}." if result.failed else result.text)[:MAX_LETTERS]
        color = Theme.error if result.failed else Theme.text
        self.text = ctk.CTkLabel(self, text=text, font=theme.font(), anchor="nw", justify="left", text_color=color)

    def toggle(self) -> None:
        """Enlarge the image, or make it small again."""
        self.is_large = not self.is_large
        self._on_change()
        self.after(SCROLL_MS, lambda: scroll_to(self))

    def lay(self, width: float, is_beside: bool) -> None:
        """Arrange it in a width, in unscaled pixels. is_beside: whether the text is beside a small image."""
        is_beside = is_beside and not self.is_large
        # texts begin alike beside wide and narrow images, whose buttons are wider than they are
        beside = BUTTON + 2 * PAD
        self.grid_columnconfigure(0, weight=0 if is_beside else 1, minsize=is_beside * self.app.theme.scaled(beside))
        self.grid_columnconfigure(1, weight=1 if is_beside else 0)
        self.grid_rowconfigure(1, weight=1 if is_beside else 0)
        self.picture.grid(row=0, column=0, rowspan=2 if is_beside else 1, padx=PAD, pady=PAD, sticky="n")
        at = 1 if is_beside else 0
        self._name.grid(row=1 - at, column=at, sticky="ew", padx=(0 if is_beside else PAD, PAD), pady=(PAD * at, 0))
        self.text.grid(row=2 - at, column=at, sticky="new", padx=(0 if is_beside else PAD, PAD), pady=(0, PAD))
        taken = beside + PAD if is_beside else 2 * PAD
        self.text.configure(wraplength=max(MIN_TEXT, int(width) - taken - PAD))
        self._load(self._large_size(width) if self.is_large else (SIDE, SIDE))

    def _large_size(self, width: float) -> tuple[int, int]:
        """As wide as the window, and not much higher than what is in sight of it."""
        page = page_around(self)
        in_sight = 0 if page is None else page._parent_canvas.winfo_height() / self.app.theme.scaled(100) * 100
        return max(SIDE, int(width) - 4 * PAD), max(LEAST_LARGE, int(in_sight) - 10 * PAD)

    def _load(self, size: tuple[int, int]) -> None:
        """Decode the image in a thread, to be shown in at most this size, in unscaled pixels."""
        if size == self._shown:
            return
        self._shown, scale = size, self.app.theme.scaled(100) / 100
        key = PictureKey(self.result.path, round(size[0] * scale), round(size[1] * scale), self.result.mask)

        def take(decoded: Sequence[tuple[PictureKey, Image.Image | str]]) -> None:
            image = decoded[0][1]
            if not self.winfo_exists() or size != self._shown or isinstance(image, str):
                return
            width, height = max(1, round(image.width / scale)), max(1, round(image.height / scale))
            self.picture.configure(image=ctk.CTkImage(image, size=(width, height)), height=height + 4)

        self.app.in_background(lambda: decode_pictures([key]), take)
