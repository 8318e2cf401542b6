"""The current image of the dataset window: large, with its caption, or while its mask is painted, it is cropped or
compared with those that look like it."""

from __future__ import annotations

import functools
import tkinter as tk
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.visible_text import visible_text
from modules.ui.models.DatasetView import DatasetItem, describe
from modules.ui.models.training_fit import fit_of
from modules.ui.widgets.fitting import wrap_to
from modules.ui.widgets.LargeView import LargeView
from modules.ui.widgets.Tooltip import Tooltip
from modules.ui.windows.CaptionPane import CaptionPane, Direction
from modules.ui.windows.CropPane import CropPane
from modules.ui.windows.DuplicatePane import DuplicatePane
from modules.ui.windows.MaskPane import MaskPane

if TYPE_CHECKING:
    from modules.ui.App import App

    Pane = MaskPane | CropPane | DuplicatePane


NARROW = 400  # unscaled pixels: less is told of an image
BUSY_MS = 100  # until a mask that is being changed as a whole is looked at again
MIN_PICTURE = 64  # unscaled pixels


class ImageSide(ctk.CTkFrame):
    """selected, on_renewed, on_edit_many, on_note: as of CaptionPane. on_unsaved: as there, for captions and masks.

    on_editing: called when painting, cropping or comparing begins or ends. on_go: called with an item that is to be
    shown.
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
        on_editing: Callable[[], None],
        on_go: Callable[[DatasetItem], None],
    ):
        super().__init__(parent)
        self.app = app
        self.is_painting = self.is_cropping = self.is_comparing = False
        self._pane: Pane | None = None  # that is shown in place of the image and its caption
        self._is_low = False
        self._item: DatasetItem | None = None
        self._on_renewed, self._on_unsaved, self._on_editing = on_renewed, on_unsaved, on_editing
        self._on_note, self._on_go = on_note, on_go
        theme = app.theme
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(0, weight=9, minsize=theme.scaled(MIN_PICTURE))
        self.grid_rowconfigure(2, weight=1)
        self.large = LargeView(self, app)
        self.large.grid(row=0, column=0, columnspan=2, sticky="nsew", padx=8, pady=(8, 4))
        self.about = ctk.CTkFrame(self, fg_color="transparent")
        self.about.grid(row=1, column=0, sticky="ew", padx=12)
        self.about.grid_columnconfigure(0, weight=1)
        self.details = ctk.CTkLabel(
            self.about, text="", font=theme.font(12), anchor="w", justify="left", text_color=theme.muted
        )
        self.details.grid(row=0, column=0, sticky="ew", pady=(0, 4))
        wrap_to(self.about, self.details, theme, taken=0)
        self.tools = ctk.CTkFrame(self, fg_color="transparent")
        self.tools.grid(row=1, column=1, sticky="ne", padx=(0, 8), pady=2)
        self.crop_button = ctk.CTkButton(
            self.tools, text="Crop", width=60, height=26, font=theme.font(12), command=self.toggle_cropping
        )
        self.crop_button.grid(row=0, column=0, padx=(0, 8))
        self.paint_button = ctk.CTkButton(
            self.tools, text="Mask", width=60, height=26, font=theme.font(12), command=self.toggle_painting
        )
        self.paint_button.grid(row=0, column=1)
        Tooltip(self.crop_button, theme, lambda: "Choose which part of the image is trained (C).")
        Tooltip(self.paint_button, theme, lambda: "Paint what of the image is learned (M).")
        self.caption = CaptionPane(self, app, selected, self._take_renewed, on_unsaved, on_edit_many, on_note)
        self.caption.grid(row=2, column=0, columnspan=2, sticky="nsew", padx=8, pady=(0, 8))
        self.crops = CropPane(self, app, self.caption, on_note, self.end_cropping)
        self.bind_toggles(self.large.canvas)
        self.bind("<Configure>", lambda event: self._show_text(), add="+")

    @functools.cached_property
    def masks(self) -> MaskPane:
        """Made when a mask is first painted: of the time in which the window opens, it would take a quarter."""
        return MaskPane(self, self.app, self.caption, self._on_note, self._take_unsaved_mask, self.end_painting)

    @functools.cached_property
    def groups(self) -> DuplicatePane:
        """Made when images are first compared."""
        return DuplicatePane(self, self.app, self.caption, self._on_note, self.end_comparing, self._on_go)

    @property
    def made_panes(self) -> list[Pane]:
        """Those that there are so far."""
        return [self.crops, *(vars(self)[name] for name in ("masks", "groups") if name in vars(self))]

    @property
    def is_editing(self) -> bool:
        """Whether the mask is being painted, the image cropped or its group compared."""
        return self.is_painting or self.is_cropping or self.is_comparing

    def bind_toggles(self, canvas: tk.Canvas) -> None:
        """Let M paint the mask and C crop while this has the focus."""
        for letters, toggle in (("mM", self.toggle_painting), ("cC", self.toggle_cropping)):  # with Caps Lock, too
            _bind_letters(canvas, letters, toggle)

    def focus_editor(self) -> None:
        """Lead to what is being edited: the mask, the crop, the group or the caption."""
        (self.caption.box if self._pane is None else self._pane.canvas).focus_set()

    def show(self, item: DatasetItem | None, folder_fps: float | None = None, mask: str = "", version: int = 0) -> None:
        """Show an item, as large as there is room; None: nothing. The others: as of LargeView."""
        self.large.show(item.path if item else "", folder_fps, mask, version)
        self.show_details(item)

    def show_details(self, item: DatasetItem | None) -> None:
        """Show what is known of the shown item, which may have been read again, and its caption."""
        self._item = item
        if self.is_painting:
            self.masks.show(item)
        if self.is_cropping:
            self.crops.show(item)
        if self.is_comparing:
            self.groups.show(item)
        self.caption.show(item)
        self._show_text()

    def save(self) -> None:
        """Write the caption, the crop and the mask if they were edited."""
        self.caption.save()
        for pane in self.made_panes:
            if not isinstance(pane, DuplicatePane):  # which writes at once
                pane.save()

    def saves_first(self, then: Callable[[], object]) -> bool:
        """Whether edits are still to be written before the program may end. If so, `then` is called once they are, and
        not if one is refused and the person goes on with it."""
        masks: MaskPane | None = vars(self).get("masks")  # not made if nothing was painted
        if masks is not None and masks.canvas.is_busy:
            self.after(BUSY_MS, then)
            return True
        self.save()
        writing = self.caption.writing
        if not writing.is_busy:
            return False

        def go_on() -> None:
            painted = None if masks is None else masks.opened
            if not self.caption.is_edited and (painted is None or not painted.painting.is_changed):
                then()

        writing.when_done(go_on)
        return True

    def step(self, direction: Direction) -> None:
        """Undo or redo: while painting or cropping, a step of it, else what `CaptionPane.step` does."""
        if self.is_painting:
            self.masks.step(direction)
        elif self.is_cropping:
            self.crops.step(direction)
        else:
            self.caption.step(direction)

    def toggle_painting(self) -> None:
        if self.is_painting:
            self.end_painting()
        elif self._item is not None:
            self.caption.save()
            self.end_editing()
            self._show_masks(True)
            self.masks.show(self._item)
            self.masks.canvas.focus_set()

    def end_painting(self) -> None:
        """Save the mask and show the image again."""
        if self.is_painting:
            self.masks.show(None)
            self._show_masks(False)

    def toggle_cropping(self) -> None:
        if self.is_cropping:
            self.end_cropping()
        elif self._item is not None:
            self.caption.save()
            self.end_editing()
            self._show_crops(True)
            self.crops.show(self._item)
            self.crops.canvas.focus_set()

    def end_cropping(self) -> None:
        """Save the crop and show the image again."""
        if self.is_cropping:
            self.crops.show(None)
            self._show_crops(False)

    def toggle_comparing(self) -> None:
        if self.is_comparing:
            self.end_comparing()
        elif self._item is not None:
            self.caption.save()
            self.end_editing()
            self.is_comparing = True
            self._show_instead(self.groups, True)
            self.groups.show(self._item)
            self.groups.canvas.focus_set()

    def end_comparing(self) -> None:
        """Show the image again."""
        if self.is_comparing:
            self.is_comparing = False
            self.groups.show(None)
            self._show_instead(self.groups, False)

    def end_editing(self) -> None:
        """End painting, cropping or comparing, whichever it is."""
        self.end_painting()
        self.end_cropping()
        self.end_comparing()

    def _show_masks(self, is_painting: bool) -> None:
        self.is_painting = is_painting
        self._show_instead(self.masks, is_painting)
        self.paint_button.configure(text="Image" if is_painting else "Mask")

    def _show_crops(self, is_cropping: bool) -> None:
        self.is_cropping = is_cropping
        self._show_instead(self.crops, is_cropping)
        self.crop_button.configure(text="Image" if is_cropping else "Crop")

    def _show_instead(self, pane: Pane, is_shown: bool) -> None:
        """Show a pane in the place of the image and its caption, or these again."""
        if not is_shown:
            pane.grid_remove()
        self._pane = pane if is_shown else None
        self._lay()
        self._show_text()
        self._on_editing()

    def lay_low(self, is_low: bool) -> None:
        """Place the parts for a low window, or again as they were."""
        if is_low != self._is_low:
            self._is_low = is_low
            self._lay()

    def _lay(self) -> None:
        """The caption is below the image, in a low window beside it; what is edited is in place of both."""
        is_low, pane = self._is_low, self._pane
        is_beside = pane is None and is_low
        if pane is not None:
            pane.grid(row=0, column=0, columnspan=2, sticky="nsew", padx=8, pady=(8, 4))
            self.large.grid_remove()
            self.caption.grid_remove()
        else:
            self.large.grid(columnspan=1 if is_low else 2)
            place = {"row": 0, "column": 1, "columnspan": 1} if is_low else {"row": 2, "column": 0, "columnspan": 2}
            self.caption.grid(**place, sticky="nsew", padx=8, pady=(8 if is_low else 0, 8))
        # a group tells it of each of its images
        are_shown = pane is None or not (is_low or self.is_comparing)
        for part in (self.about, self.tools):
            (part.grid if are_shown else part.grid_remove)()
        self.grid_rowconfigure(2, weight=1 if pane is None and not is_low else 0)
        self.grid_columnconfigure(1, weight=int(is_beside))
        # Side by side, the columns are not as wide as their texts ask for: those are wrapped to what they get, and two
        # of them would take room from each other for ever.
        for column in (0, 1):
            self.grid_columnconfigure(column, uniform="beside" if is_beside else "")

    def _show_text(self) -> None:
        """What is known of the shown item, and how it is trained."""
        item, config = self._item, self.crops.config_of_run
        text = describe(item) if item is not None else ""
        if item is not None and not item.problem and config is not None and item.concept < len(config.concepts):
            fit = fit_of(item.trained_part, config.concepts[item.concept], config.data)
            if fit is not None and not self.is_cropping:  # which tells it itself
                is_narrow = self.winfo_width() < self.app.theme.scaled(NARROW)
                how = f"upscaled to {fit.scale:.0%}" if fit.is_enlarged else ""
                text += f"   {how if is_narrow else fit.describe()}"
        if self.details.cget("text") != visible_text(text):
            self.details.configure(text=visible_text(text))
        self.large.outline(item.shown_part if item is not None else ())

    def _take_unsaved_mask(self, item: DatasetItem) -> None:
        """Lead back to an item whose mask could not be saved."""
        self._show_masks(True)
        self._on_unsaved(item)

    def _take_renewed(self, items: Iterable[DatasetItem]) -> None:
        """Show items whose files have changed."""
        items = list(items)
        shown = self._item
        if shown is not None and any(one.path == shown.path for one in items):
            self._show_text()
        for pane in self.made_panes:
            pane.take_renewed({item.path for item in items})
        self._on_renewed(items)


def _bind_letters(canvas: tk.Canvas, letters: str, action: Callable[[], None]) -> None:
    for letter in letters:
        canvas.bind(f"<{letter}>", lambda event: action())
        canvas.bind(f"<Control-{letter}>", lambda event: None)  # of the window
