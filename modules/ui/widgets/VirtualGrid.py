"""A grid of thumbnails with marks, several of which can be selected; 20,000 scroll as smoothly as 50."""

from __future__ import annotations

import os
import tkinter as tk
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from modules.ui.models.Selection import Selection
from modules.ui.theme import Theme
from modules.ui.widgets.PictureCanvas import PictureCanvas
from modules.ui.window_system import wheel_notches

if TYPE_CHECKING:
    from modules.ui.App import App
    from modules.ui.models.PictureDecoder import PictureDecoder
    from modules.ui.theme import Pair

SIDES = (72, 96, 128, 176, 240, 320)  # of thumbnails, in unscaled pixels
GAP, PAD, NAME_HEIGHT = 6, 5, 20
MARK_SIZE = 10  # of the font
DRAG_PIXELS = 6  # that the pointer moves before a click becomes a frame
CONTROL, SHIFT = 0x4, 0x1  # in the state of an event
COMMAND = 0x8  # on macOS


@dataclass(frozen=True)
class Tile:
    """What a cell shows. marks: short texts over the image, with the colour of their background.

    is_faint: whether the image is drawn behind a veil, as one that is not trained. mask, version, crop: as of
    PictureKey.
    """

    path: str
    marks: Sequence[tuple[str, Pair]] = ()
    is_faint: bool = False
    mask: str = ""
    version: int = 0
    crop: tuple[int, ...] = ()


class VirtualGrid(PictureCanvas):
    """Items by number, of which those in `show` are there, in its order.

    tile_of: asked for each cell when it is drawn. on_current: called with the item that is now the current one.
    on_select: called when the selection has changed. empty: what is written where there are no items. decoder: decodes
    the thumbnails; None: threads of the window do. on_unreadable: called with the number of an item whose image can't
    be decoded, and the reason, whenever it is drawn.

    Keys: arrows, Page Up and Down, Home and End move and select; with Shift they extend the selection, with Ctrl they
    only move. Space selects or deselects the current one, Ctrl+A all; Return opens; + and - change the size, as the
    wheel with Ctrl does. A drag that starts beside the images selects what it frames.
    """

    num_loaders = 2
    cache_bytes = 64 * 2**20

    def __init__(
        self,
        parent: tk.Misc,
        app: App,
        tile_of: Callable[[int], Tile],
        on_current: Callable[[int | None], None],
        on_select: Callable[[], None],
        on_open: Callable[[int], None] | None = None,
        empty: str = "No images",
        decoder: PictureDecoder | None = None,
        on_unreadable: Callable[[int, str], None] = lambda number, reason: None,
    ):
        self.selection = Selection()
        self.side = SIDES[2]
        self.empty = empty
        self._order: Sequence[int] = ()
        self._tile_of, self._on_current, self._on_select = tile_of, on_current, on_select
        self._on_unreadable = on_unreadable
        self._frame_from: tuple[int, int] | None = None  # where the button went down, in pixels of the content
        self._frame_item: int | None = None
        self._before_frame: set[int] = set()
        self._sizes: dict[tuple[str, tuple], tuple[int, int]] = {}  # of the texts of marks, by font
        if decoder is not None:
            self.decode = decoder.decode
        super().__init__(parent, app, None, on_open)
        self._bind_selection()

    # --- public methods ----------------------------------------------------------------------------------------------

    def show(self, order: Sequence[int]) -> None:
        """Show these items, in this order; the scroll position and the selection stay as far as possible."""
        before, selected = self.selection.current, set(self.selection.numbers)
        self._order = order
        self.selection.show(order)
        self.chosen = self.selection.current
        self.show_count(len(order))
        if self.selection.current != before:
            self._on_current(self.selection.current)
        if self.selection.numbers != selected:
            self._on_select()

    def choose(self, number: int | None) -> None:
        """Select this one alone, and scroll to it."""
        self._change(lambda: self.selection.choose(number))

    def select(self, numbers: Iterable[int]) -> None:
        """Select these, as far as they are shown."""
        self._change(lambda: self.selection.take(numbers), scrolls=False)

    def go_by(self, step: int) -> None:
        """Select the item so many places after the current one, or the last one there is."""
        if self._order:
            self._go(self._place_after(step), 0)

    def resize(self, side: int) -> None:
        """side: of a thumbnail, in unscaled pixels. What is at the top of the grid stays there."""
        first = self._numbers_in_sight()[0] if self.count else None
        self.side = side
        if first is not None:
            current = self.selection.current
            in_sight = current is not None and current in self._items
            self._bring_into_sight(current if in_sight and current is not None else first)
        self.redraw()

    def resize_by(self, step: int) -> str:
        """Show thumbnails larger (1) or smaller (-1) by a step."""
        nearest = min(range(len(SIDES)), key=lambda place: abs(SIDES[place] - self.side))
        self.resize(SIDES[min(max(0, nearest + step), len(SIDES) - 1)])
        return "break"

    @property
    def is_loading(self) -> bool:
        """Whether images in sight are being decoded."""
        return self._is_loading

    def redraw_items(self, numbers: Iterable[int]) -> None:
        """Draw these anew, as far as they are in sight."""
        for number in self._items.keys() & set(numbers):
            self.redraw_cell(number)

    # --- the cells ---------------------------------------------------------------------------------------------------

    def number_at(self, place: int) -> int:
        return self._order[place]

    def place_of(self, number: int) -> int | None:
        return self.selection.place_of(number)

    def empty_text(self) -> str:
        return self.empty

    def num_columns(self) -> int:
        return max(1, self.shown_size[0] // self.app.theme.scaled(self.side + GAP + 2 * PAD))

    def cell_size(self) -> tuple[int, int]:
        scaled = self.app.theme.scaled
        height = scaled(self.side) + scaled(GAP) + 2 * scaled(PAD) + scaled(NAME_HEIGHT)
        return max(1, self.shown_size[0] // self.num_columns()), height

    def draw_cell(self, number: int, x: int, y: int) -> None:
        theme, scaled, tile = self.app.theme, self.app.theme.scaled, self._tile_of(number)
        cell_width, cell_height = self.cell_size()
        side, pad, half_gap = scaled(self.side), scaled(PAD), scaled(GAP) // 2
        left, top = x + (cell_width - side) // 2, y + half_gap + pad
        is_selected = number in self.selection.numbers
        right, bottom = left + side + pad, y + cell_height - half_gap
        if is_selected:
            fill = theme.now(theme.selected)
            self.canvas.create_rectangle(left - pad, top - pad, right, bottom, fill=fill, width=0)
        if reason := self.draw_picture(tile.path, left, top, side, side, tile.mask, tile.version, tile.crop):
            self._on_unreadable(number, reason)
        if tile.is_faint and not self._command:  # where a Mac would draw the veil opaque
            veil = theme.now(theme.card)
            self.canvas.create_rectangle(left, top, left + side, top + side, fill=veil, width=0, stipple="gray50")
        colour = theme.on_accent if is_selected else theme.muted if tile.is_faint else theme.text
        self.draw_text(left, top + side + scaled(3), os.path.basename(tile.path), side, 11, colour)
        self._draw_marks(tile.marks, left, top, side)
        if number == self.selection.current:
            line = max(2, scaled(2))
            outline = theme.now(theme.text if is_selected else theme.focus)
            self.canvas.create_rectangle(left - pad, top - pad, right, bottom, outline=outline, width=line)

    def _draw_marks(self, marks: Sequence[tuple[str, Pair]], left: int, top: int, side: int) -> None:
        """Draw as many marks as fit, one below the other."""
        theme, scaled = self.app.theme, self.app.theme.scaled
        if not marks:
            return
        font = theme.plain_font(MARK_SIZE)
        height = self._size_of("", font)[1] + scaled(2)
        y = top + scaled(3)
        for text, colour in marks:
            if y + height > top + side:
                return
            width = min(side - scaled(6), self._size_of(text, font)[0] + scaled(10))
            box = left + scaled(3), y, left + scaled(3) + width, y + height
            self.canvas.create_rectangle(*box, fill=theme.now(colour), outline=theme.now(theme.card))
            ink = theme.now(theme.on_accent) if colour in (Theme.selected, Theme.stop) else theme.now(theme.card)
            cut = self.texts.cut(text, width - scaled(6), font)
            self.canvas.create_text(box[0] + scaled(4), y + scaled(1), text=cut, anchor="nw", fill=ink, font=font)
            y += height + scaled(2)

    def _size_of(self, text: str, font: tuple) -> tuple[int, int]:
        """Of the text of a mark, in pixels, and the height of a line."""
        if (text, font) not in self._sizes:
            measured = self.texts.font(font)
            self._sizes[text, font] = measured.measure(text), measured.metrics("linespace")
        return self._sizes[text, font]

    # --- selecting ---------------------------------------------------------------------------------------------------

    def _change(self, change: Callable[[], object], scrolls: bool = True) -> None:
        """Change the selection, and draw and report what is different."""
        current, selected = self.selection.current, set(self.selection.numbers)
        change()
        self.chosen = now = self.selection.current
        self.redraw_items(selected ^ self.selection.numbers | {one for one in (current, now) if one is not None})
        if now is not None and scrolls:
            self._bring_into_sight(now)
            self._draw_later()
        if now != current:
            self._on_current(now)
        if selected != self.selection.numbers:
            self._on_select()

    def _place_after(self, step: int) -> int:
        current = self.selection.current
        place = None if current is None else self.place_of(current)
        return min(max(0, 0 if place is None else place + step), len(self._order) - 1)

    def _go(self, place: int, state: int) -> None:
        number, selection = self._order[place], self.selection
        if state & SHIFT:
            self._change(lambda: selection.extend_to(number, keeps=bool(state & (CONTROL | self._command))))
        elif state & (CONTROL | self._command):
            self._change(lambda: selection.move_to(number))
        else:
            self._change(lambda: selection.choose(number))

    def _bind_selection(self) -> None:
        bind = self.canvas.bind
        is_mac = self.tk.call("tk", "windowingsystem") == "aqua"
        self._command = COMMAND if is_mac else 0  # elsewhere it is Mod1, such as NumLock
        bind("<B1-Motion>", self._on_drag)
        bind("<ButtonRelease-1>", self._on_release)
        bind("<space>", lambda event: self._on_space())
        for key in ("<Control-a>", "<Control-A>", *(("<Command-a>",) if is_mac else ())):
            bind(key, lambda event: self._take_all())
        for key, by in (("plus", 1), ("equal", 1), ("KP_Add", 1), ("minus", -1), ("KP_Subtract", -1)):
            bind(f"<{key}>", partial(self._on_resize_key, by))
        bind("<Control-MouseWheel>", lambda event: self.resize_by(1 if wheel_notches(event) > 0 else -1))
        bind("<Control-Button-4>", lambda event: self.resize_by(1))
        bind("<Control-Button-5>", lambda event: self.resize_by(-1))

    def _take_all(self) -> str:
        self._change(self.selection.take_all, scrolls=False)
        return "break"

    def _on_space(self) -> str:
        current = self.selection.current
        if current is not None:
            self._change(lambda: self.selection.toggle(current))
        return "break"

    def _on_resize_key(self, by: int, event: tk.Event) -> str:
        return self.resize_by(by)

    def _on_key(self, event: tk.Event) -> str:
        if not self._order:
            return "break"
        columns, state = self.num_columns(), event.state if isinstance(event.state, int) else 0
        page = columns * max(1, self._content()[1][1] // self.cell_size()[1])
        steps = {
            "Left": -1, "Right": 1, "Up": -columns, "Down": columns, "Prior": -page, "Next": page,
            "Home": -self.count, "End": self.count,
        }  # fmt: skip
        step = steps[event.keysym]
        place = self._place_after(step)
        current = self.selection.current
        at = None if current is None else self.place_of(current)
        if event.keysym in ("Up", "Down") and at is not None and not 0 <= at + step < self.count:
            # from the last row but one, down leads to the last item; in the first and the last row it stays
            is_last_row = at // columns == (self.count - 1) // columns
            place = at if event.keysym == "Up" or is_last_row else self.count - 1
        self._go(place, state)
        return "break"

    def _on_click(self, event: tk.Event) -> None:
        self.canvas.focus_set()
        number, state = self._image_at(event.x, event.y), event.state if isinstance(event.state, int) else 0
        adds = bool(state & (CONTROL | self._command))
        self._frame_from = None
        if number is None:
            self._frame_from = event.x + self._offset[0], event.y + self._offset[1]
            self._before_frame = set(self.selection.numbers) if adds or state & SHIFT else set()
            if not adds and not state & SHIFT:
                self._change(lambda: self.selection.take(()), scrolls=False)
        elif state & SHIFT:
            self._change(lambda: self.selection.extend_to(number, keeps=adds), scrolls=False)
        elif adds:
            self._change(lambda: self.selection.toggle(number), scrolls=False)
        else:
            self._change(lambda: self.selection.choose(number), scrolls=False)

    def _image_at(self, x: int, y: int) -> int | None:
        """The item whose tile, without the gap around it, is at a point of the canvas."""
        number = self.cell_at(x, y)
        if number is None:
            return None
        left, _ = self.corner_of(number)
        margin = (self.cell_size()[0] - self.app.theme.scaled(self.side)) // 2 - self.app.theme.scaled(PAD)
        return number if margin <= x - left <= self.cell_size()[0] - margin else None

    # --- a frame drawn with the mouse --------------------------------------------------------------------------------

    def _on_drag(self, event: tk.Event) -> None:
        if self._frame_from is None:
            return
        height = self.shown_size[1]
        if event.y < 0 or event.y > height:  # beyond the edge it scrolls
            self._offset[1] += event.y if event.y < 0 else event.y - height
            self._keep_inside()
            self._draw_later()
        x, y = event.x + self._offset[0], event.y + self._offset[1]
        left, right = sorted((self._frame_from[0], x))
        top, bottom = sorted((self._frame_from[1], y))
        if self._frame_item is None and max(right - left, bottom - top) < DRAG_PIXELS:
            return
        framed = self._framed(left, top, right, bottom)
        self._change(lambda: self.selection.take(self._before_frame | framed), scrolls=False)
        across, down = self._offset
        box = left - across, top - down, right - across, bottom - down
        if self._frame_item is not None:
            self.canvas.delete(self._frame_item)
        outline = self.app.theme.now(self.app.theme.focus)
        self._frame_item = self.canvas.create_rectangle(*box, outline=outline, dash=(4, 3))

    def _framed(self, left: int, top: int, right: int, bottom: int) -> set[int]:
        """The items that a rectangle of the content touches."""
        width, height = self.cell_size()
        columns = self.num_columns()
        rows = range(max(0, top // height), bottom // height + 1)
        of_row = range(max(0, left // width), min(columns - 1, right // width) + 1)
        places = (row * columns + column for row in rows for column in of_row)
        return {self._order[place] for place in places if place < self.count}

    def _on_release(self, event: tk.Event) -> None:
        self._frame_from = None
        if self._frame_item is not None:
            self.canvas.delete(self._frame_item)
            self._frame_item = None
