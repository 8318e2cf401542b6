"""The crop of the current image, to be drawn in place."""

from __future__ import annotations

import os
import tkinter as tk
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal

import customtkinter as ctk
from PIL import Image

from modules.config.errors import UserError
from modules.config.labels import with_labels
from modules.config.visible_text import visible_text
from modules.data.errors import ImageError
from modules.data.videos import load_still, read_frames
from modules.ui.models.CropFrame import CropFrame
from modules.ui.models.MaskView import reduced
from modules.ui.models.training_fit import fit_of, training_shapes
from modules.ui.widgets.CropCanvas import CropCanvas
from modules.ui.widgets.fitting import wrap_to
from modules.ui.widgets.Tooltip import Tooltip

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.curation.Journal import Applied
    from modules.data.ImageSettings import Crop
    from modules.ui.App import App
    from modules.ui.models.DatasetView import DatasetItem
    from modules.ui.windows.CaptionPane import CaptionPane

FREE, ORIGINAL, SQUARE = "Free", "Original", "1:1"
WHOLE = "The image is smaller than that, so it is trained blurred."
LARGER = "The crop is smaller than that: a larger one is trained sharper."
HINT = "Arrows move the crop, with Shift by 10 pixels; with Ctrl they resize it. The file is not changed."


class CropPane(ctk.CTkFrame):
    """A crop is saved when cropping ends, when another image is shown, and by Ctrl+S.

    captions: writes the settings, in order with captions. on_note: called with a sentence on what was done or failed.
    on_leave: called when cropping is to end. config: of the run, whose sizes are offered and told.
    """

    def __init__(
        self,
        parent: tk.Misc,
        app: App,
        captions: CaptionPane,
        on_note: Callable[[str], None],
        on_leave: Callable[[], None],
    ):
        super().__init__(parent, fg_color="transparent")
        self.app = app
        self.config_of_run: TrainConfig | None = None
        self._item: DatasetItem | None = None
        self._saved: Crop | None = None  # as the image's settings have it
        self._captions, self._on_note, self._on_leave = captions, on_note, on_leave
        self._aspects: dict[str, float | None] = {FREE: None}
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(0, weight=1)
        self.canvas = CropCanvas(self, app, self._show_state)
        self.canvas.grid(row=0, column=0, sticky="nsew")
        self._build()
        for key in ("<c>", "<C>", "<Escape>", "<Return>"):
            self.canvas.bind(key, lambda event: self._leave())
        for key in ("<Control-c>", "<Control-C>"):
            self.canvas.bind(key, lambda event: None)  # of the window
        self.canvas.bind("<BackSpace>", lambda event: self.reset())

    # --- public methods ----------------------------------------------------------------------------------------------

    @property
    def frame(self) -> CropFrame | None:
        """Of the image that is shown; None until it is there."""
        return self.canvas.frame

    @property
    def is_changed(self) -> bool:
        """Whether the crop is another one than that of the image's settings."""
        return self.frame is not None and self._item is not None and self._crop != self._saved

    def show(self, item: DatasetItem | None) -> None:
        """Crop another image; None: none."""
        if item is not None and self._item is not None and item.path == self._item.path:
            self._item = item  # it may have been read again
            return
        self.save()
        self._open(item)

    def save(self) -> None:
        """Write the crop if it was changed."""
        item, work, crop = self._item, self._captions.work, self._crop
        if not self.is_changed or item is None or work is None:
            return
        before, self._saved = self._saved, crop
        self._show_state()

        def take(applied: Applied) -> None:
            self._on_note(f"{applied.label}: saved.")
            self._captions.renew([item])

        def fail(error: Exception) -> None:
            if not isinstance(error, UserError):
                raise error
            self._captions.tell_failed(f"The crop of {os.path.basename(item.path)} is not saved: {error}")
            if self._item is not None and self._item.path == item.path:
                self._saved = before
                self._show_state()

        self._captions.do(lambda: work.set_crop(item.concept, item.path_below, crop), take, fail)

    def reset(self) -> None:
        """Take the whole image again."""
        if self.frame is not None:
            self.frame.reset()
            self.aspect.set(FREE)
            self.canvas.refresh()
            self._show_state()

    def step(self, direction: Literal["undo", "redo"]) -> None:
        """Undo what is not saved yet, else the last change of the folder, as `CaptionPane.step` does."""
        if direction == "undo" and self.is_changed:
            self._take_saved()
        else:
            self._captions.step(direction)

    def take_renewed(self, paths: set[str]) -> None:
        """Show the crop as the settings have it now. paths: of items whose files have changed."""
        item = self._item
        if item is not None and item.path in paths and self.frame is not None and self._saved != item.crop:
            was_changed, self._saved = self.is_changed, item.crop
            if not was_changed:
                self._take_saved()

    # --- opening -----------------------------------------------------------------------------------------------------

    def _open(self, item: DatasetItem | None) -> None:
        """Load an image in a thread."""
        self._item, self._saved = item, item.crop if item is not None else None
        self.canvas.use(None, None, "" if item is None else "Loading…")
        self._show_state()
        if item is None or self._captions.work is None:
            return
        self._offer_aspects(item)
        folder_fps = self._captions.work.concept(item.concept).frame_folders_fps

        def load() -> tuple[Image.Image, tuple[int, int]]:
            is_folder = os.path.isdir(item.path)
            picture = next(read_frames(item.path, [0.0], folder_fps)) if is_folder else load_still(item.path)
            return reduced(picture), picture.size

        def take(loaded: tuple[Image.Image, tuple[int, int]]) -> None:
            if self._is_wanted(item):
                self.canvas.use(loaded[0], CropFrame(loaded[1], item.crop))
                self._choose_aspect(self.aspect.get())

        def fail(error: Exception) -> None:
            if not isinstance(error, UserError):
                raise error
            if self._is_wanted(item):
                reason = error.reason if isinstance(error, ImageError) else str(error)
                self.canvas.use(None, None, visible_text(f"It can't be read: {reason}"))

        self.app.in_background(load, take, fail)

    def _is_wanted(self, item: DatasetItem) -> bool:
        return self._item is not None and self._item.path == item.path and bool(self.winfo_exists())

    def _offer_aspects(self, item: DatasetItem) -> None:
        """The aspect ratios that can be kept: those of the sizes in which the concept is trained, too."""
        self._aspects = {FREE: None, ORIGINAL: None, SQUARE: 1.0}
        config = self.config_of_run
        if config is not None:
            shapes = training_shapes(config.concepts[item.concept], config.data)
            self._aspects |= {f"{width} x {height}": width / height for width, height in shapes}
        self.aspect.configure(values=list(self._aspects))
        if self.aspect.get() not in self._aspects:
            self.aspect.set(FREE)

    # --- editing -----------------------------------------------------------------------------------------------------

    @property
    def _crop(self) -> Crop | None:
        """As the settings have it: None for the whole image."""
        return None if self.frame is None or self.frame.is_whole else self.frame.crop

    def _take_saved(self) -> None:
        if self.frame is not None:
            self.aspect.set(FREE)
            self.canvas.frame = CropFrame(self.frame.whole, self._saved)
            self.canvas.refresh()
            self._show_state()

    def _take_aspect(self, name: str) -> None:
        self._choose_aspect(name, fits=True)
        self.canvas.focus_set()

    def _choose_aspect(self, name: str, fits: bool = False) -> None:
        """Keep an aspect ratio. fits: whether the crop takes it at once; else when it is resized."""
        frame = self.frame
        if frame is not None:
            aspect = frame.whole[0] / frame.whole[1] if name == ORIGINAL else self._aspects[name]
            if fits:
                frame.choose_aspect(aspect)
            else:
                frame.aspect = aspect
            self.canvas.refresh()
        self._show_state()

    def _leave(self) -> str:
        self._on_leave()
        return "break"

    # --- display -----------------------------------------------------------------------------------------------------

    def _show_state(self) -> None:
        frame, item, config = self.frame, self._item, self.config_of_run
        size, text, color = "", HINT, self.app.theme.muted
        if frame is not None and item is not None:
            part = frame.crop.width, frame.crop.height
            size = f"{part[0]} x {part[1]} pixels" + (" (whole image)" if frame.is_whole else "")
            fit = fit_of(part, config.concepts[item.concept], config.data) if config is not None else None
            if fit is not None:
                text = f"{fit.describe().capitalize()}."
                if fit.is_enlarged:
                    text, color = f"{text} {WHOLE if frame.is_whole else LARGER}", self.app.theme.warning
                else:
                    text = f"{text} {HINT}"
            size += "; not saved yet" if self.is_changed else ""
        self._size.configure(text=size)
        self._state.configure(text=visible_text(with_labels(text))[:300], text_color=color)
        self.buttons["reset"].configure(state="normal" if frame is not None and not frame.is_whole else "disabled")
        self.buttons["save"].configure(state="normal" if self.is_changed else "disabled")

    def _build(self) -> None:
        theme, font = self.app.theme, self.app.theme.font(12)
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=1, column=0, sticky="ew", pady=(6, 0))
        bar.grid_columnconfigure(2, weight=1)
        ctk.CTkLabel(bar, text="Aspect ratio", font=font).grid(row=0, column=0, padx=(4, 6))
        self.aspect = ctk.CTkOptionMenu(
            bar, values=list(self._aspects), width=116, height=26, font=font, command=self._take_aspect
        )
        self.aspect.grid(row=0, column=1)
        Tooltip(self.aspect, theme, lambda: "Keep an aspect ratio, such as that of a size in which images are trained.")
        self.buttons: dict[str, ctk.CTkButton] = {}
        for column, (name, label, command, hint) in enumerate(
            (
                ("reset", "Reset", self.reset, "Use the whole image (BackSpace)."),
                ("save", "Save", self.save, "Save the crop (Ctrl+S). It is also saved when cropping ends."),
                ("done", "Done", self._on_leave, "End cropping (C)."),
            )
        ):
            button = ctk.CTkButton(bar, text=label, width=50, height=26, font=font, command=command)
            button.grid(row=0, column=3 + column, padx=(6, 0))
            Tooltip(button, theme, partial(str, hint))
            self.buttons[name] = button
        self._size = ctk.CTkLabel(self, text="", font=font, anchor="w")
        self._size.grid(row=2, column=0, sticky="ew", padx=4, pady=(6, 0))
        self._state = ctk.CTkLabel(self, text="", font=font, anchor="w", justify="left", text_color=theme.muted)
        self._state.grid(row=3, column=0, sticky="ew", padx=4, pady=(2, 0))
        wrap_to(self, self._state, theme, taken=8)
        self._show_state()
