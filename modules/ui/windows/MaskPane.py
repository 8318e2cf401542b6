"""The mask of the current image, to be painted in place."""

from __future__ import annotations

import math
import tkinter as tk
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import customtkinter as ctk
import numpy as np

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.labels import with_labels
from modules.config.visible_text import visible_text
from modules.curation.FileChanges import ChangedOutside
from modules.curation.MaskPainting import BLACK, MAX_DIAMETER, WHITE, Box
from modules.data.errors import ImageError
from modules.ui.models.open_mask import OpenMask, open_mask, region_around, transparency
from modules.ui.widgets.dialogs import ask
from modules.ui.widgets.fitting import wrap_to
from modules.ui.widgets.FoldingRow import FoldingRow
from modules.ui.widgets.MaskCanvas import MaskCanvas, Tool
from modules.ui.widgets.Tooltip import Tooltip
from modules.ui.windows.ProposalBar import ProposalBar
from modules.ui.windows.unsaved_edits import OVERWRITE, settle

if TYPE_CHECKING:
    from modules.curation.Journal import Applied
    from modules.ui.App import App
    from modules.ui.models.DatasetView import DatasetItem
    from modules.ui.windows.CaptionPane import CaptionPane

TOOLS: dict[str, tuple[Tool, str]] = {
    "Brush": ("brush", "b"),
    "Eraser": ("eraser", "e"),
    "Fill": ("fill", "g"),
    "Polygon": ("polygon", "p"),
    "Rectangle": ("rectangle", "r"),
    "Model": ("model", "l"),
}
FIRST_SIZE = 1 / 20  # of the longer side: the diameter of the brush before a person chooses
FEATHER = 1 / 400  # of the longer side: by how much edges fade at once
KEEP, RELOAD = "Keep painting", "Load the file"
HINT = "What is colored is learned. Shift erases, the wheel changes the brush, Ctrl and the wheel zoom."


class MaskPane(ctk.CTkFrame):
    """A mask is saved when painting ends, when another image is shown, and by Ctrl+S.

    captions: writes the files, in order with those of captions. on_note: called with a sentence on what was done or has
    failed. on_unsaved: called with an item whose mask could not be saved, though another image is shown or painting has
    ended by now. on_leave: called when painting is to end.
    """

    def __init__(
        self,
        parent: tk.Misc,
        app: App,
        captions: CaptionPane,
        on_note: Callable[[str], None],
        on_unsaved: Callable[[DatasetItem], None],
        on_leave: Callable[[], None],
    ):
        super().__init__(parent, fg_color="transparent")
        self.app = app
        self.opened: OpenMask | None = None
        self._item: DatasetItem | None = None  # that is shown, or being opened
        self._captions = captions
        self._on_note, self._on_unsaved, self._on_leave = on_note, on_unsaved, on_leave
        self._tolerance = 24
        self._saves_after = False  # whether to save once what is being done is done
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(0, weight=1)
        self.canvas = MaskCanvas(self, app, self._show_state, self._show_size, self._fill)
        self.canvas.grid(row=0, column=0, sticky="nsew")
        self._build()
        self._bind_keys()

    # --- public methods ----------------------------------------------------------------------------------------------

    def show(self, item: DatasetItem | None) -> None:
        """Paint the mask of another item; None: of none."""
        if item is not None and self._item is not None and item.path == self._item.path:
            self._item = item  # it may have been read again
            if self.opened is not None:
                self.opened.item = item
            return
        self.save()
        self._open(item)
        if item is None:
            self.bar.end()

    def save(self) -> None:
        """Write the mask if it was painted on."""
        if self.canvas.is_busy:
            self._saves_after = True
        elif self.opened is not None:
            self._save(self.opened)

    def remove(self) -> None:
        """Remove the mask, in all files that could be read as one: the image is learned as a whole."""
        if self.opened is None or self.canvas.is_busy:
            return
        self._edit(self.opened.painting.fill_all(BLACK))
        self.opened.painting.mark_saved()
        self._write(self.opened, None)

    def step(self, direction: Literal["undo", "redo"]) -> None:
        """Undo or redo a step of painting."""
        if self.opened is not None and not self.canvas.is_busy:
            painting = self.opened.painting
            self._edit(painting.undo() if direction == "undo" else painting.redo())

    def take_renewed(self, paths: set[str]) -> None:
        """Load the mask again if its file has changed. paths: of items whose files have."""
        opened = self.opened
        if opened is None or opened.item.path not in paths or opened.painting.is_changed:
            return

        def take(is_current: bool) -> None:
            if self.opened is opened and not is_current and not opened.painting.is_changed:
                self._open(opened.item)

        self.app.in_background(opened.file.is_current, take, self._take_failure)

    # --- opening and saving ------------------------------------------------------------------------------------------

    def _open(self, item: DatasetItem | None) -> None:
        """Load an image and its mask in a thread."""
        work = self._captions.work
        self._item, self.opened = item, None
        self.bar.drop()
        self.canvas.use(None, "" if item is None else "Loading…")
        self._show_state()
        if item is None or work is None:
            return

        def take(opened: OpenMask) -> None:
            if not self._is_wanted(item) or not self.winfo_exists():
                return
            self.opened = opened
            if not self.canvas.diameter:
                self.canvas.set_diameter(max(opened.painting.size) * FIRST_SIZE)
            self.canvas.use(opened.view)
            self._show_size()
            self._show_state()

        def fail(error: Exception) -> None:
            if not isinstance(error, UserError):
                raise error
            if self._is_wanted(item) and self.winfo_exists():
                reason = error.reason if isinstance(error, ImageError) else str(error)
                self.canvas.use(None, visible_text(f"It can't be read: {reason}"))

        self.app.in_background(lambda: open_mask(item, work), take, fail)

    def _is_wanted(self, item: DatasetItem) -> bool:
        return self._item is not None and self._item.path == item.path

    def _save(self, opened: OpenMask) -> None:
        if opened.painting.is_changed:
            opened.painting.mark_saved()
            self._write(opened, opened.painting.values.copy())
            self._show_state()

    def _write(self, opened: OpenMask, values: np.ndarray | None, overwrites: bool = False) -> None:
        item, work = opened.item, opened.work

        def take(applied: Applied) -> None:
            removed = f": {counted(len(applied.paths), 'file')} removed."
            self._on_note(applied.label + (" saved." if values is not None else removed))
            self._captions.renew([item], with_masks=True)

        keep = partial(work.keep_mask, item.concept, item.path, values)

        def save_again() -> None:
            opened.painting.mark_saved()
            self._write(opened, values, overwrites=True)

        def fail(error: Exception) -> None:
            opened.painting.mark_unsaved()
            is_shown = self._restore(opened)
            self._show_state()
            if not is_shown:
                settle(self.app, error, keep, save_again)
            elif isinstance(error, ChangedOutside):
                self._ask_about(opened, error, save_again)
            else:
                self._take_failure(error)

        write = partial(work.write_mask, item.concept, opened.file, values, overwrites)
        self._captions.do(write, take, fail, keep)

    def _restore(self, opened: OpenMask) -> bool:
        """Show a mask again that could not be saved, unless another one is being painted or the window is closed;
        whether it is shown."""
        if self._captions.work is not opened.work:
            return False
        if self.opened is opened:
            return True
        if self.opened is not None and self.opened.painting.is_changed:
            return False
        self._item, self.opened = opened.item, opened
        self.canvas.use(opened.view)
        self._on_unsaved(opened.item)
        return True

    def _ask_about(self, opened: OpenMask, error: ChangedOutside, save_again: Callable[[], None]) -> None:
        text = f"{error}\n\nWhat should become of it?"
        answer = ask(self.app, "Changed by another program", text, (KEEP, RELOAD, OVERWRITE), danger=OVERWRITE)
        if answer == OVERWRITE:
            save_again()
        elif answer == RELOAD and self.opened is opened:
            self._open(opened.item)

    def _take_failure(self, error: Exception) -> None:
        if not isinstance(error, UserError):
            raise error
        self._captions.tell_failed(error)
        if self.winfo_exists():
            self._state.configure(text=visible_text(with_labels(str(error)))[:300], text_color=self.app.theme.error)

    # --- editing -----------------------------------------------------------------------------------------------------

    def _edit(self, changed: Box | None) -> None:
        self.canvas.refresh(changed)
        self._show_state()

    def _do(self, edit: Callable[[OpenMask], Box]) -> None:
        """Change the whole mask in a thread: millions of pixels take a while."""
        opened = self.opened
        if opened is None or self.canvas.is_busy:
            return
        self.canvas.give_up()
        self._set_busy(True)

        def take(changed: Box) -> None:
            self._set_busy(False)
            if self.opened is opened and self.winfo_exists():
                self._edit(changed)
            if self._saves_after:  # asked for while the mask was being changed, perhaps as another image was chosen
                self._saves_after = False
                self._save(opened)

        def fail(error: Exception) -> None:
            self._set_busy(False)
            self._saves_after = False
            self._take_failure(error)

        self.app.in_background(lambda: edit(opened), take, fail)

    def _apply(self, change: Callable[[np.ndarray], np.ndarray]) -> None:
        """Make another mask of the whole one, as one step."""
        self._do(lambda one: one.painting.replace(change(one.painting.values)))

    def _set_busy(self, is_busy: bool) -> None:
        self.canvas.is_busy = is_busy
        if self.winfo_exists():
            self.canvas.configure(cursor="watch" if is_busy else "")

    def _fill(self, x: int, y: int, value: int) -> None:
        tolerance = self._tolerance
        self._do(lambda opened: opened.painting.fill(region_around(opened.view, x, y, tolerance), value))

    def _feather(self, opened: OpenMask) -> Box:
        return opened.painting.feather(self._feather_pixels(opened))

    @staticmethod
    def _feather_pixels(opened: OpenMask) -> int:
        return max(1, round(max(opened.painting.size) * FEATHER))

    # --- display -----------------------------------------------------------------------------------------------------

    def _choose(self, name: str) -> None:
        self.tools.set(name)
        self.canvas.choose(TOOLS[name][0])
        self.bar.drop()
        self._show_size()
        self._show_state()

    def _show_size(self) -> None:
        """Let labels and sliders follow the tool."""
        tool, canvas = self.canvas.tool, self.canvas
        (self._sliders.grid_remove if tool == "model" else self._sliders.grid)()
        (self.bar.grid if tool == "model" else self.bar.grid_remove)()
        if tool == "fill":
            self._soft.set(self._tolerance / 100)
            self._soft_text.configure(text=f"Tolerance {self._tolerance}")
        else:
            self._soft.set(canvas.softness)
            self._soft_text.configure(text=f"Softness {canvas.softness:.0%}")
        self._size.set(math.log(max(1, canvas.diameter), MAX_DIAMETER))
        self._size_text.configure(text=f"Size {canvas.diameter} px")

    def _take_size(self, share: float) -> None:
        self.canvas.set_diameter(MAX_DIAMETER**share)

    def _take_softness(self, share: float) -> None:
        if self.canvas.tool == "fill":
            self._tolerance = round(share * 100)
        else:
            self.canvas.softness = round(share, 2)
        self._show_size()

    def _show_state(self) -> None:
        opened = self.opened
        text = HINT if opened is None else opened.note or ("Not saved yet." if opened.painting.is_changed else HINT)
        color = self.app.theme.muted
        if opened is not None and self.canvas.tool == "model":
            text, color = with_labels(self.bar.text), self.app.theme.error if self.bar.is_wrong else color
        self._state.configure(text=visible_text(text)[:300], text_color=color)
        can = {
            "undo": opened is not None and opened.painting.can_undo,
            "redo": opened is not None and opened.painting.can_redo,
            "save": opened is not None and opened.painting.is_changed,
            "remove": opened is not None and bool(opened.item.mask),
        }
        for name, is_possible in can.items():
            self.buttons[name].configure(state="normal" if is_possible else "disabled")

    # --- widgets -----------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        theme, font = self.app.theme, self.app.theme.font(12)
        self.tools = ctk.CTkSegmentedButton(self, values=list(TOOLS), font=font, command=self._choose)
        self.tools.grid(row=1, column=0, sticky="ew", pady=(6, 0))
        self.tools.set("Brush")
        for name, button in self.tools._buttons_dict.items():
            Tooltip(button, theme, partial("{} ({})".format, name, TOOLS[name][1].upper()))
        sliders = ctk.CTkFrame(self, fg_color="transparent")
        sliders.grid(row=2, column=0, sticky="ew", pady=(6, 0))
        self._sliders = sliders
        sliders.grid_columnconfigure((1, 3), weight=1)
        self._size_text = ctk.CTkLabel(sliders, text="", font=font, width=88, anchor="w")
        self._size = ctk.CTkSlider(sliders, height=16, width=60, command=self._take_size)
        self._soft_text = ctk.CTkLabel(sliders, text="", font=font, width=88, anchor="w")
        self._soft = ctk.CTkSlider(sliders, height=16, width=60, command=self._take_softness)
        for column, widget in enumerate((self._size_text, self._size, self._soft_text, self._soft)):
            widget.grid(row=0, column=column, sticky="ew", padx=4)
        self.bar = ProposalBar(self, self.app, self.canvas, lambda: self.opened, self._apply, self._show_state)
        self.bar.grid(row=2, column=0, sticky="ew", pady=(6, 0))
        self.canvas.helper = self.bar
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=3, column=0, sticky="ew", pady=(6, 0))
        self.buttons: dict[str, ctk.CTkButton] = {}
        for name, text, command, hint in self._actions():
            self.buttons[name] = ctk.CTkButton(bar, text=text, width=44, height=26, font=font, command=command)
            Tooltip(self.buttons[name], theme, hint)
        kept = [self.buttons[name] for name in ("undo", "redo", "save", "done")]
        self.row = FoldingRow(bar, list(self.buttons.values()), self.app, lambda: kept)
        self._state = ctk.CTkLabel(self, text="", font=font, anchor="w", justify="left", text_color=theme.muted)
        self._state.grid(row=4, column=0, sticky="ew", padx=4, pady=(4, 0))
        wrap_to(self, self._state, theme, taken=8)
        self._show_size()
        self._show_state()

    def _actions(self) -> Sequence[tuple[str, str, Callable[[], None], Callable[[], str]]]:
        """The name, text, command and hint of each button."""

        def feather_hint() -> str:
            pixels = self._feather_pixels(self.opened) if self.opened is not None else 0
            return f"Let edges fade over {pixels} pixels to either side; again for more."

        whole = "Learn all of the image, then erase what is not to be learned."
        removed = "Remove the mask's file, and others that would be read instead: the image is learned as a whole."
        return (
            ("undo", "Undo", partial(self.step, "undo"), lambda: "Undo the last step of painting (Ctrl+Z)."),
            ("redo", "Redo", partial(self.step, "redo"), lambda: "Redo it (Ctrl+Y)."),
            ("invert", "Invert", lambda: self._do(lambda one: one.painting.invert()), lambda: "Invert the mask (I)."),
            ("feather", "Feather", lambda: self._do(self._feather), feather_hint),
            ("whole", "Fill all", lambda: self._do(lambda one: one.painting.fill_all(WHITE)), lambda: whole),
            ("clear", "Clear", lambda: self._do(lambda one: one.painting.fill_all(BLACK)), lambda: "Erase all of it."),
            (
                "alpha",
                "From alpha",
                lambda: self._do(lambda one: one.painting.replace(transparency(one))),
                lambda: "Take the transparency of the image: what is opaque is learned.",
            ),
            ("remove", "Remove", self.remove, lambda: removed),
            ("save", "Save", self.save, lambda: "Save the mask (Ctrl+S). It is also saved when painting ends."),
            ("done", "Done", self._on_leave, lambda: "End painting (M)."),
        )

    def _bind_keys(self) -> None:
        for name, (_, key) in TOOLS.items():
            self._bind_letter(key, partial(self._choose, name))
        self._bind_letter("i", lambda: self._do(lambda one: one.painting.invert()))
        self._bind_letter("m", self._on_leave)
        self.canvas.bind("<Escape>", lambda event: self._on_escape())

    def _bind_letter(self, letter: str, action: Callable[[], None]) -> None:
        command = "Command" if self.tk.call("tk", "windowingsystem") == "aqua" else "Control"
        for key in (letter, letter.upper()):  # with Caps Lock
            self.canvas.bind(f"<{key}>", lambda event: action())
            self.canvas.bind(f"<{command}-{key}>", lambda event: None)  # of the window

    def _on_escape(self) -> str:
        if not self.canvas.give_up() and not self.bar.drop():
            self._on_leave()
        return "break"
