"""An image with a mask on it, which is painted with the mouse."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from PIL import ImageColor, ImageTk

from modules.curation.MaskPainting import BLACK, MAX_DIAMETER, WHITE, Box, Brush, is_empty
from modules.ui.window_system import wheel_notches

if TYPE_CHECKING:
    from modules.ui.App import App
    from modules.ui.models.MaskView import MaskView

Tool = Literal["brush", "eraser", "fill", "polygon", "rectangle", "model"]

ZOOM_STEP = 1.25
SIZE_STEP = 1.15  # of the brush, by a notch of the wheel or a key
KEY_PIXELS = 60  # by which arrows move the image
CLOSE_PIXELS = 8  # from its first corner, where a click closes a polygon
SHIFT = 0x1
GUIDES, CURSOR = "guides", "cursor"


class Helper(Protocol):
    """Is told what is done with the tool "model". Places are in pixels of the mask."""

    def add_click(self, x: float, y: float, is_inside: bool) -> None: ...

    def drop_click(self) -> None: ...

    def accept(self) -> None: ...


class MaskCanvas(tk.Canvas):
    """Paints on the `MaskView` of `use` with `tool`; with Shift, a tool erases.

    The wheel and [ ] change the size of the brush; the wheel with Ctrl, + and - zoom, 0 shows the whole image; the
    middle button and arrows move it. A click adds a corner of a polygon; Return, a double click or a click on the first
    corner closes it, and BackSpace removes the last one.

    on_changed: called after each step. on_size: when the size of the brush has changed. on_fill: called with the pixel
    where the tool "fill" was used, and the value to fill with. helper: gets the clicks of the tool "model", of which
    those with the right button or Shift are outside of what is wanted; Return accepts, BackSpace drops the last one.
    """

    def __init__(
        self,
        parent: tk.Misc,
        app: App,
        on_changed: Callable[[], None],
        on_size: Callable[[], None],
        on_fill: Callable[[int, int, int], None],
    ):
        super().__init__(parent, width=10, height=10, bd=0, highlightthickness=2, takefocus=True)
        self.app = app
        self.view: MaskView | None = None
        self.tool: Tool = "brush"
        self.diameter = 0  # in pixels of the mask
        self.softness = 0.3
        self.is_busy = False  # whether something else works on the mask just now
        self.message = ""
        self.helper: Helper | None = None
        self._clicks: list[tuple[float, float, bool]] = []  # that are drawn
        self._on_changed, self._on_size, self._on_fill = on_changed, on_size, on_fill
        self._photo: ImageTk.PhotoImage | None = None
        self._is_drawing = False
        self._start: tuple[float, float] | None = None  # of a rectangle
        self._corners: list[tuple[float, float]] = []
        self._pointer: tuple[int, int] | None = None  # None while it is elsewhere
        self._grabbed: tuple[int, int] | None = None  # where the image is held while it is moved
        self._bind_events()
        self._stop_listening = app.theme.on_change(self._restyle)
        self._restyle()

    def use(self, view: MaskView | None, message: str = "") -> None:
        """Paint on another mask; None: on none, and show a message."""
        self.give_up()
        self.view, self.message = view, message
        self._restyle()
        self._resize()

    def refresh(self, changed: Box | None) -> None:
        """Show what has changed of the mask, in its pixels."""
        if self.view is None or self._photo is None or changed is None:
            return
        box = self.view.update(changed)
        if is_empty(box):
            return
        part = ImageTk.PhotoImage(self.view.frame.crop(box), master=self)
        self.tk.call(str(self._photo), "copy", str(part), "-to", box[0], box[1])  # the rest need not be sent again

    def show_proposal(self, mask: np.ndarray | None, clicks: Sequence[tuple[float, float, bool]]) -> None:
        """Show what a model proposes, uint8[H, W] in the size of the mask, and what it was told; None: nothing."""
        self._clicks = list(clicks)
        view = self.view
        if view is not None and view.proposal is not mask:
            view.proposal = mask
            self.refresh(view.painting.whole)
        self._draw_guides()

    def set_diameter(self, diameter: float) -> None:
        self.diameter = min(max(1, round(diameter)), MAX_DIAMETER)
        self._draw_cursor()
        self._on_size()

    def give_up(self) -> bool:
        """Drop the corners of an unfinished area; whether there were any."""
        had_any = bool(self._corners) or self._start is not None
        self._corners, self._start, self._grabbed = [], None, None
        if self._is_drawing and self.view is not None:
            self._is_drawing = False
            self.view.painting.end_stroke()
        self.delete(GUIDES)
        return had_any

    def choose(self, tool: Tool) -> None:
        self.give_up()
        self.tool = tool
        self._draw_cursor()

    # --- painting ----------------------------------------------------------------------------------------------------

    def _on_press(self, event: tk.Event) -> str:
        self.focus_set()
        view = self.view
        if view is None or self.is_busy:
            return "break"
        x, y = view.to_mask(event.x, event.y)
        if self.tool == "model":
            self._add_click(event, _value(event) == WHITE)
        elif self.tool in ("brush", "eraser"):
            self._is_drawing = True
            self.refresh(view.painting.begin_stroke(self._brush(event), x, y))
        elif self.tool == "fill":
            width, height = view.painting.size
            if 0 <= x < width and 0 <= y < height:
                self._on_fill(int(x), int(y), _value(event))
        elif self.tool == "rectangle":
            self._start = x, y
        else:
            self._add_corner(event, x, y)
        return "break"

    def _on_drag(self, event: tk.Event) -> None:
        self._pointer = event.x, event.y
        self._draw_cursor()
        if self.view is None:
            return
        if self._is_drawing:
            self.refresh(self.view.painting.stroke_to(*self.view.to_mask(event.x, event.y)))
        elif self._start is not None:
            self._draw_guides()

    def _on_release(self, event: tk.Event) -> None:
        view = self.view
        if view is None:
            return
        if self._is_drawing:
            self._is_drawing = False
            view.painting.end_stroke()
            self._on_changed()
        elif self._start is not None:
            start, self._start = self._start, None
            self.delete(GUIDES)
            self.refresh(view.painting.fill_rectangle(start, view.to_mask(event.x, event.y), _value(event)))
            self._on_changed()

    def _add_click(self, event: tk.Event, is_inside: bool) -> None:
        if self.view is None or self.helper is None or self.tool != "model" or self.is_busy:
            return
        x, y = self.view.to_mask(event.x, event.y)
        width, height = self.view.painting.size
        if 0 <= x < width and 0 <= y < height:
            self.helper.add_click(x, y, is_inside)

    def _add_corner(self, event: tk.Event, x: float, y: float) -> None:
        assert self.view is not None
        if self._corners:
            first = self.view.to_screen(*self._corners[0])
            if len(self._corners) > 2 and max(abs(first[0] - event.x), abs(first[1] - event.y)) <= CLOSE_PIXELS:
                self._close_polygon(event)
                return
        self._corners.append((x, y))
        self._draw_guides()

    def _close_polygon(self, event: tk.Event) -> str:
        if self.tool == "model" and self.helper is not None:
            self.helper.accept()
        elif self.view is not None and len(self._corners) > 2 and not self.is_busy:
            corners, self._corners = self._corners, []
            self.delete(GUIDES)
            self.refresh(self.view.painting.fill_polygon(corners, _value(event)))
            self._on_changed()
        return "break"

    def _drop_corner(self, event: tk.Event) -> str:
        if self.tool == "model" and self.helper is not None:
            self.helper.drop_click()
        elif self._corners:
            self._corners.pop()
            self._draw_guides()
        return "break"

    def _brush(self, event: tk.Event) -> Brush:
        return Brush(self.diameter, self.softness, (self.tool == "eraser") != (_value(event) == BLACK))

    # --- place -------------------------------------------------------------------------------------------------------

    def _zoom(self, factor: float, x: int, y: int) -> str:
        if self.view is not None:
            self.view.zoom_by(factor, x, y)
            self._draw()
        return "break"

    def _zoom_by_key(self, factor: float, event: tk.Event) -> str:
        return self._zoom(factor, self.winfo_width() // 2, self.winfo_height() // 2)

    def _fit(self, event: tk.Event) -> str:
        if self.view is not None:
            self.view.fit()
            self._draw()
        return "break"

    def _move(self, x: int, y: int) -> None:
        if self.view is not None:
            self.view.move_by(x, y)
            self._draw()

    def _move_by_key(self, x: int, y: int, event: tk.Event) -> str:
        step = self.app.theme.scaled(KEY_PIXELS)
        self._move(x * step, y * step)
        return "break"

    def _on_grab(self, event: tk.Event) -> None:
        self._grabbed = event.x, event.y

    def _on_move(self, event: tk.Event) -> None:
        if self._grabbed is not None:
            self._move(event.x - self._grabbed[0], event.y - self._grabbed[1])
            self._grabbed = event.x, event.y

    def _on_wheel(self, notches: float, event: tk.Event) -> str:
        return self._resize_brush(SIZE_STEP**notches)

    def _resize_brush(self, factor: float) -> str:
        step = 1 if factor > 1 else -1
        wanted = round(self.diameter * factor)
        self.set_diameter(self.diameter + step if wanted == self.diameter else wanted)
        return "break"

    # --- drawing -----------------------------------------------------------------------------------------------------

    def _resize(self) -> None:
        if self.view is not None:
            self.view.resize(self.winfo_width(), self.winfo_height())
        self._draw()

    def _draw(self) -> None:
        self.delete("all")
        if self.view is None:
            self._photo = None
            theme, middle = self.app.theme, (self.winfo_width() // 2, self.winfo_height() // 2)
            self.create_text(
                *middle, text=self.message, width=max(40, self.winfo_width() - 40), justify="center",
                fill=theme.now(theme.muted), font=theme.plain_font(13),
            )  # fmt: skip
            return
        self._photo = ImageTk.PhotoImage(self.view.frame, master=self)
        self.create_image(0, 0, image=self._photo, anchor="nw")
        self._draw_guides()
        self._draw_cursor()

    def _draw_guides(self) -> None:
        """The outline of an unfinished area."""
        self.delete(GUIDES)
        if self.view is None:
            return
        if self._start is not None and self._pointer is not None:
            corner = self.view.to_screen(*self._start)
            for color, width in _LINES:
                self.create_rectangle(*corner, *self._pointer, outline=color, width=width, tags=GUIDES)
        if self._corners:
            line = [self.view.to_screen(*corner) for corner in self._corners]
            for color, width in _LINES:
                self.create_line(*line, *[self._pointer or line[-1]], fill=color, width=width, tags=GUIDES)
            x, y = line[0]
            self.create_oval(x - 4, y - 4, x + 4, y + 4, fill="white", outline="black", tags=GUIDES)

        for x, y, is_inside in self._clicks:
            self._draw_click(*self.view.to_screen(x, y), is_inside)

    def _draw_click(self, x: float, y: float, is_inside: bool) -> None:
        """A plus for what is inside, a minus for what is not."""
        radius, arm = self.app.theme.scaled(7), self.app.theme.scaled(4)
        fill = "black" if is_inside else "white"
        self.create_oval(
            x - radius, y - radius, x + radius, y + radius, outline=fill, fill="white" if is_inside else "black",
            width=2, tags=GUIDES,
        )  # fmt: skip
        self.create_line(x - arm, y, x + arm + 1, y, fill=fill, width=2, tags=GUIDES)
        if is_inside:
            self.create_line(x, y - arm, x, y + arm + 1, fill=fill, width=2, tags=GUIDES)

    def _draw_cursor(self) -> None:
        """The outline of the brush."""
        self.delete(CURSOR)
        if self.view is None or self._pointer is None or self.tool not in ("brush", "eraser"):
            return
        radius, (x, y) = self.diameter * self.view.zoom / 2, self._pointer
        for color, width in _LINES:
            self.create_oval(
                x - radius, y - radius, x + radius, y + radius, outline=color, width=width, tags=CURSOR
            )  # fmt: skip

    def _on_pointer(self, event: tk.Event) -> None:
        self._pointer = event.x, event.y
        self._draw_cursor()
        if self._corners:
            self._draw_guides()

    def _on_leave(self, event: tk.Event) -> None:
        self._pointer = None
        self._draw_cursor()

    def _restyle(self) -> None:
        theme = self.app.theme
        card = theme.now(theme.card)
        self.configure(bg=card, highlightcolor=theme.now(theme.focus), highlightbackground=card)
        if self.view is not None:
            red, green, blue = ImageColor.getrgb(card)[:3]
            self.view.background = red, green, blue
        self._resize()

    # --- events ------------------------------------------------------------------------------------------------------

    def _bind_events(self) -> None:
        self.bind("<Configure>", lambda event: self._resize())
        self.bind("<ButtonPress-1>", self._on_press)
        self.bind("<B1-Motion>", self._on_drag)
        self.bind("<ButtonRelease-1>", self._on_release)
        self.bind("<Double-Button-1>", lambda event: (self._close_polygon if self._corners else self._on_press)(event))
        self.bind("<Motion>", self._on_pointer)
        self.bind("<Enter>", self._on_pointer)
        self.bind("<Leave>", self._on_leave)
        self.bind("<ButtonPress-3>", lambda event: self._add_click(event, False))
        self.bind("<ButtonPress-2>", self._on_grab)
        self.bind("<B2-Motion>", self._on_move)
        self.bind("<MouseWheel>", lambda event: self._on_wheel(wheel_notches(event), event))
        self.bind("<Button-4>", partial(self._on_wheel, 1))
        self.bind("<Button-5>", partial(self._on_wheel, -1))
        self.bind("<Control-MouseWheel>", lambda event: self._zoom(ZOOM_STEP ** wheel_notches(event), event.x, event.y))
        self.bind("<Control-Button-4>", lambda event: self._zoom(ZOOM_STEP, event.x, event.y))
        self.bind("<Control-Button-5>", lambda event: self._zoom(1 / ZOOM_STEP, event.x, event.y))
        self.bind("<bracketleft>", lambda event: self._resize_brush(1 / SIZE_STEP))
        self.bind("<bracketright>", lambda event: self._resize_brush(SIZE_STEP))
        for key, factor in (
            ("plus", ZOOM_STEP), ("equal", ZOOM_STEP), ("KP_Add", ZOOM_STEP), ("minus", 1 / ZOOM_STEP),
            ("KP_Subtract", 1 / ZOOM_STEP),
        ):  # fmt: skip
            self.bind(f"<{key}>", partial(self._zoom_by_key, factor))
        for key in ("<Key-0>", "<KP_0>"):
            self.bind(key, self._fit)
        for key, x, y in (("Left", 1, 0), ("Right", -1, 0), ("Up", 0, 1), ("Down", 0, -1)):
            self.bind(f"<{key}>", partial(self._move_by_key, x, y))
            self.bind(f"<Alt-{key}>", lambda event: None)  # of the window
        for key in ("<Return>", "<KP_Enter>"):
            self.bind(key, self._close_polygon)
        self.bind("<BackSpace>", self._drop_corner)

    def destroy(self) -> None:
        self._stop_listening()
        super().destroy()
        self._photo = None  # freed here, on the Tk thread


_LINES = (("black", 3), ("white", 1))  # a light line on a dark one is seen on any image


def _value(event: tk.Event) -> int:
    """What to paint with: black while Shift is held."""
    return BLACK if isinstance(event.state, int) and event.state & SHIFT else WHITE
