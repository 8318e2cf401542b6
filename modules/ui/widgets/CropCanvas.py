"""An image with the rectangle of a crop on it, which is drawn, moved and resized with the mouse or by keys."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from PIL import Image, ImageTk

from modules.ui.models.CropFrame import INSIDE

if TYPE_CHECKING:
    from modules.ui.App import App
    from modules.ui.models.CropFrame import CropFrame

REACH = 8  # unscaled pixels from an edge, where it is held
HANDLE = 4  # half the side of a handle
DIMMED = 0.35  # of the brightness of what is cut away
FAR = 10  # pixels of the image by which keys move with Shift
SHIFT, CONTROL = 0x1, 0x4
FRAME = "frame"
CURSORS = {
    "n": "top_side", "s": "bottom_side", "w": "left_side", "e": "right_side", "nw": "top_left_corner",
    "ne": "top_right_corner", "sw": "bottom_left_corner", "se": "bottom_right_corner", INSIDE: "fleur",
}  # fmt: skip
_LINES = (("black", 3), ("white", 1))  # a light line on a dark one is seen on any image


class CropCanvas(tk.Canvas):
    """Changes the `CropFrame` of `use`. on_changed: called after each change.

    A drag from beside the crop draws a new one. Arrows move the crop by a pixel, with Shift by ten; with Ctrl they move
    its right and its lower edge.
    """

    def __init__(self, parent: tk.Misc, app: App, on_changed: Callable[[], None]):
        super().__init__(parent, width=10, height=10, bd=0, highlightthickness=2, takefocus=True)
        self.app = app
        self.frame: CropFrame | None = None
        self.message = ""
        self._on_changed = on_changed
        self._picture: Image.Image | None = None
        self._fitted: Image.Image | None = None  # as large as it is shown
        self._photo: ImageTk.PhotoImage | None = None  # dimmed
        self._bright: ImageTk.PhotoImage | None = None  # the crop
        self._scale, self._left, self._top = 1.0, 0, 0  # screen pixels for one of the image, and where it begins
        self._handle = ""
        self._start: tuple[float, float] | None = None  # where a new crop is drawn from
        self._last = (0.0, 0.0)
        self._rest = (0.0, 0.0)  # of a movement, less than a pixel
        self._bind_events()
        self._stop_listening = app.theme.on_change(self._restyle)
        self._restyle()

    def use(self, picture: Image.Image | None, frame: CropFrame | None, message: str = "") -> None:
        """Crop another image, perhaps reduced; None: none, and show a message."""
        self._picture, self.frame, self.message = picture, frame, message
        self._handle, self._start = "", None
        self._resize()

    def refresh(self) -> None:
        """Draw the crop anew, which was changed from outside."""
        self._draw_frame()

    def to_screen(self, x: float, y: float) -> tuple[float, float]:
        return self._left + x * self._scale, self._top + y * self._scale

    def to_image(self, x: float, y: float) -> tuple[float, float]:
        return (x - self._left) / self._scale, (y - self._top) / self._scale

    # --- drawing -----------------------------------------------------------------------------------------------------

    def _resize(self) -> None:
        self._fitted = None
        if self._picture is not None and self.frame is not None:
            margin = self.app.theme.scaled(HANDLE) + 3
            room = max(1, self.winfo_width() - 2 * margin), max(1, self.winfo_height() - 2 * margin)
            width, height = self.frame.whole
            self._scale = min(room[0] / width, room[1] / height)
            size = max(1, round(width * self._scale)), max(1, round(height * self._scale))
            self._left, self._top = (self.winfo_width() - size[0]) // 2, (self.winfo_height() - size[1]) // 2
            self._fitted = self._picture.resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0)
        self._draw()

    def _draw(self) -> None:
        self.delete("all")
        if self._fitted is None:
            self._photo = self._bright = None
            theme, middle = self.app.theme, (self.winfo_width() // 2, self.winfo_height() // 2)
            self.create_text(
                *middle, text=self.message, width=max(40, self.winfo_width() - 40), justify="center",
                fill=theme.now(theme.muted), font=theme.plain_font(13),
            )  # fmt: skip
            return
        dimmed = self._fitted.point([round(value % 256 * DIMMED) for value in range(256 * 3)])
        self._photo = ImageTk.PhotoImage(dimmed, master=self)
        self.create_image(self._left, self._top, image=self._photo, anchor="nw")
        self._draw_frame()

    def _draw_frame(self) -> None:
        self.delete(FRAME)
        if self.frame is None or self._fitted is None:
            return
        crop, (width, height) = self.frame.crop, self._fitted.size
        left, top = round(crop.x * self._scale), round(crop.y * self._scale)
        right = min(width, max(left + 1, round((crop.x + crop.width) * self._scale)))
        bottom = min(height, max(top + 1, round((crop.y + crop.height) * self._scale)))
        left, top = min(left, right - 1), min(top, bottom - 1)
        self._bright = ImageTk.PhotoImage(self._fitted.crop((left, top, right, bottom)), master=self)
        x, y = self._left + left, self._top + top
        self.create_image(x, y, image=self._bright, anchor="nw", tags=FRAME)
        box = x, y, self._left + right, self._top + bottom
        for color, line in _LINES:
            self.create_rectangle(*box, outline=color, width=line, tags=FRAME)
        half = self.app.theme.scaled(HANDLE)
        middle = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        for at_x in (box[0], middle[0], box[2]):
            for at_y in (box[1], middle[1], box[3]):
                if (at_x, at_y) != middle:
                    corner = at_x - half, at_y - half, at_x + half, at_y + half
                    self.create_rectangle(*corner, fill="white", outline="black", tags=FRAME)

    def _restyle(self) -> None:
        theme = self.app.theme
        card = theme.now(theme.card)
        self.configure(bg=card, highlightcolor=theme.now(theme.focus), highlightbackground=card)
        self._draw()

    # --- mouse and keys ----------------------------------------------------------------------------------------------

    def _handle_at(self, event: tk.Event) -> str:
        assert self.frame is not None
        reach = self.app.theme.scaled(REACH) / self._scale
        handle = self.frame.handle_at(*self.to_image(event.x, event.y), reach)
        # of the whole image only edges can be held: a drag within it draws
        return "" if handle == INSIDE and self.frame.is_whole else handle

    def _on_press(self, event: tk.Event) -> None:
        self.focus_set()
        if self.frame is not None:
            self._handle = self._handle_at(event)
            self._last, self._rest = self.to_image(event.x, event.y), (0.0, 0.0)
            self._start = None if self._handle else self._last

    def _on_drag(self, event: tk.Event) -> None:
        if self.frame is None:
            return
        x, y = self.to_image(event.x, event.y)
        if self._handle == INSIDE:
            across, down = self._rest[0] + x - self._last[0], self._rest[1] + y - self._last[1]
            self._rest = across - round(across), down - round(down)
            self.frame.move_by(round(across), round(down))
        elif self._handle:
            self.frame.drag(self._handle, x, y)
        elif self._start is not None:
            self.frame.draw(self._start, (x, y))
        self._last = x, y
        self._change()

    def _on_release(self, event: tk.Event) -> None:
        self._handle, self._start = "", None

    def _on_pointer(self, event: tk.Event) -> None:
        if self.frame is not None:
            self.configure(cursor=CURSORS.get(self._handle_at(event), "crosshair"))

    def _on_arrow(self, x: int, y: int, event: tk.Event) -> str:
        if self.frame is not None:
            state = event.state if isinstance(event.state, int) else 0
            far = FAR if state & SHIFT else 1
            (self.frame.grow_by if state & CONTROL else self.frame.move_by)(x * far, y * far)
            self._change()
        return "break"

    def _change(self) -> None:
        self._draw_frame()
        self._on_changed()

    def _bind_events(self) -> None:
        self.bind("<Configure>", lambda event: self._resize())
        self.bind("<ButtonPress-1>", self._on_press)
        self.bind("<B1-Motion>", self._on_drag)
        self.bind("<ButtonRelease-1>", self._on_release)
        self.bind("<Motion>", self._on_pointer)
        for key, x, y in (("Left", -1, 0), ("Right", 1, 0), ("Up", 0, -1), ("Down", 0, 1)):
            self.bind(f"<{key}>", partial(self._on_arrow, x, y))
            self.bind(f"<Alt-{key}>", lambda event: None)  # of the window

    def destroy(self) -> None:
        self._stop_listening()
        super().destroy()
        self._photo = self._bright = None  # freed here, on the Tk thread
