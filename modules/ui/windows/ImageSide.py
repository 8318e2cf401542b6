"""The current image of the dataset window: large, with its caption, or with its mask while that is painted."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.visible_text import visible_text
from modules.ui.models.DatasetView import DatasetItem, describe
from modules.ui.widgets.fitting import wrap_to
from modules.ui.widgets.LargeView import LargeView
from modules.ui.widgets.Tooltip import Tooltip
from modules.ui.windows.CaptionPane import CaptionPane, Direction
from modules.ui.windows.MaskPane import MaskPane

if TYPE_CHECKING:
    from modules.ui.App import App


class ImageSide(ctk.CTkFrame):
    """selected, on_renewed, on_edit_many, on_note: as of CaptionPane. on_unsaved: as there, for captions and masks.

    on_painting: called when painting begins or ends.
    """

    def __init__(
        self,
        parent: tk.Misc,
        app: App,
        selected: Callable[[], Sequence[DatasetItem]],
        on_renewed: Callable[[Iterable[DatasetItem]], None],
        on_unsaved: Callable[[DatasetItem], None],
        on_edit_many: Callable[[], None],
        on_note: Callable[[str], None],
        on_painting: Callable[[], None],
    ):
        super().__init__(parent)
        self.app = app
        self.is_painting = False
        self._item: DatasetItem | None = None
        self._on_renewed, self._on_unsaved, self._on_painting = on_renewed, on_unsaved, on_painting
        theme = app.theme
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(0, weight=4)
        self.grid_rowconfigure(2, weight=1)
        self.large = LargeView(self, app)
        self.large.grid(row=0, column=0, columnspan=2, sticky="nsew", padx=8, pady=(8, 4))
        self.details = ctk.CTkLabel(
            self, text="", font=theme.font(12), anchor="w", justify="left", text_color=theme.muted
        )
        self.details.grid(row=1, column=0, sticky="ew", padx=12)
        wrap_to(self, self.details, theme, taken=104)
        self.paint_button = ctk.CTkButton(
            self, text="Mask", width=60, height=26, font=theme.font(12), command=self.toggle_painting
        )
        self.paint_button.grid(row=1, column=1, sticky="ne", padx=(0, 8), pady=2)
        Tooltip(self.paint_button, theme, lambda: "Paint what of the image is learned (M).")
        self.caption = CaptionPane(self, app, selected, self._take_renewed, on_unsaved, on_edit_many, on_note)
        self.caption.grid(row=2, column=0, columnspan=2, sticky="nsew", padx=8, pady=(0, 8))
        self.masks = MaskPane(self, app, self.caption, on_note, self._take_unsaved_mask, self.end_painting)
        for key in ("<m>", "<M>"):
            self.large.canvas.bind(key, lambda event: self.toggle_painting())

    def show(self, item: DatasetItem | None, folder_fps: float | None = None, mask: str = "", version: int = 0) -> None:
        """Show an item, as large as there is room; None: nothing. The others: as of LargeView."""
        self.large.show(item.path if item else "", folder_fps, mask, version)
        self.show_details(item)

    def show_details(self, item: DatasetItem | None) -> None:
        """Show what is known of the shown item, which may have been read again, and its caption."""
        self._item = item
        if self.is_painting:
            self.masks.show(item)
        self.caption.show(item)
        self.details.configure(text=visible_text(describe(item)) if item else "")

    def save(self) -> None:
        """Write the caption and the mask if they were edited."""
        self.caption.save()
        self.masks.save()

    def step(self, direction: Direction) -> None:
        """Undo or redo: while painting, a step of it, else what `CaptionPane.step` does."""
        if self.is_painting:
            self.masks.step(direction)
        else:
            self.caption.step(direction)

    def toggle_painting(self) -> None:
        if self.is_painting:
            self.end_painting()
        elif self._item is not None:
            self.caption.save()
            self._show_masks(True)
            self.masks.show(self._item)
            self.masks.canvas.focus_set()

    def end_painting(self) -> None:
        """Save the mask and show the image again."""
        if self.is_painting:
            self.masks.show(None)
            self._show_masks(False)

    def _show_masks(self, is_painting: bool) -> None:
        self.is_painting = is_painting
        if is_painting:
            self.masks.grid(row=0, column=0, columnspan=2, sticky="nsew", padx=8, pady=(8, 4))
            self.large.grid_remove()
            self.caption.grid_remove()
        else:
            self.large.grid()
            self.caption.grid()
            self.masks.grid_remove()
        self.grid_rowconfigure(2, weight=0 if is_painting else 1)
        self.paint_button.configure(text="Image" if is_painting else "Mask")
        self._on_painting()

    def _take_unsaved_mask(self, item: DatasetItem) -> None:
        """Lead back to an item whose mask could not be saved."""
        self._show_masks(True)
        self._on_unsaved(item)

    def _take_renewed(self, items: Iterable[DatasetItem]) -> None:
        """Show items whose files have changed."""
        items = list(items)
        shown = self._item
        if shown is not None and any(one.path == shown.path for one in items):
            self.details.configure(text=visible_text(describe(shown)))
        self.masks.take_renewed({item.path for item in items})
        self._on_renewed(items)
