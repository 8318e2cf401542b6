"""A scrollable canvas of cells of equal size with images in them, for any number of cells.

Only visible cells are drawn, and only their images are decoded: by Pillow in threads, a few at a time and always those
visible at that moment. Scrolling moves what is drawn and draws only the cells that come into sight. Tk images are
created and freed only on the Tk thread.
"""

from __future__ import annotations

import time
import tkinter as tk
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from PIL import ImageTk

from modules.config.visible_text import visible_line
from modules.ui.models.decoding import PictureKey, decode_pictures
from modules.ui.widgets.ScrolledCells import ScrolledCells
from modules.ui.widgets.TextWidths import TextWidths

if TYPE_CHECKING:
    from PIL import Image

    from modules.ui.App import App
    from modules.ui.models.PictureDecoder import Decoded
    from modules.ui.theme import Pair

CACHE_BYTES = 32 * 2**20
SLICE_BYTES = 2**18  # of images: about what the pipe to an X server holds. More, and Tk waits for the server to read it
HEADERS = "headers"  # the tag of what is drawn over the cells


class PictureCanvas(ScrolledCells):
    """Base class of the window's galleries: a subclass defines the size of a cell and draws it.

    Keys: arrows, Page Up and Down, Home and End move the selection; Return or a double click opens; Tab moves on.
    on_choose, on_open: called with the number of a cell. decode: decodes images, in threads. num_loaders: threads that
    decode at the same time. cache_bytes: of decoded images that are kept, though always those in sight.
    """

    decode: Callable[[Sequence[PictureKey]], Decoded] = staticmethod(lambda keys: decode_pictures(keys))
    num_loaders = 1  # scrolling never builds up a queue, however many there are
    cache_bytes = CACHE_BYTES

    def __init__(
        self,
        parent: tk.Misc,
        app: App,
        on_choose: Callable[[int], None] | None = None,
        on_open: Callable[[int], None] | None = None,
    ):
        super().__init__(parent, app)
        self.on_choose, self.on_open = on_choose, on_open
        self.chosen: int | None = None
        self._photos: OrderedDict[PictureKey, ImageTk.PhotoImage | str] = OrderedDict()  # str: why it can't be shown
        self._pictures: dict[int, dict[PictureKey, None]] = {}  # of each drawn cell
        self._of_cell: dict[PictureKey, None] = {}  # those of the cell that is being drawn
        self._loading: dict[PictureKey, None] = {}  # being decoded
        self._num_loading = 0  # threads that decode
        self._draw_job: str | None = None
        self._is_focused = self._frames_choice = False
        self._is_stale = True  # whether everything is to be drawn
        self._stale: set[int] = set()  # else these cells
        self._items: dict[int, str] = {}  # the tag of the items on the canvas of each drawn cell
        self._drawn_at = (0, 0)  # the offset at which they are drawn
        self.moved_at = 0.0  # when it was last scrolled, by time.monotonic
        self._build()

    # --- for subclasses to override ----------------------------------------------------------------------------------

    def draw_cell(self, number: int, x: int, y: int) -> None:
        """Draw cell `number` with its upper left corner at x, y."""
        raise NotImplementedError

    def draw_headers(self) -> None:
        """Draw the content of the margins, over the cells."""

    def empty_text(self) -> str:
        """The text shown if there are no cells."""
        return "No images"

    # --- public methods ----------------------------------------------------------------------------------------------

    def show_count(self, count: int) -> None:
        """Show `count` cells, keeping the scroll position as far as possible."""
        self.count = count
        if self.chosen is not None and (self.place_of(self.chosen) or 0) >= count:
            self.chosen = None
        self.redraw()

    def choose(self, number: int | None) -> None:
        """Select a cell, scroll to it and call on_choose."""
        self.chosen = number
        if number is not None:
            self._bring_into_sight(number)
            if self.on_choose:
                self.on_choose(number)
        self.redraw()

    def forget_pictures(self) -> None:
        """Read the images from their files again."""
        self._photos.clear()  # freed here: the decoding thread must not hold the last reference to a Tk image
        self._photos = OrderedDict()  # a new object, so that images being decoded now are not added
        self.redraw()

    def redraw(self) -> None:
        """Draw once, after all pending events."""
        self._is_stale = True
        self._draw_later()

    def redraw_cell(self, number: int) -> None:
        """As `redraw`, but only one cell, if it is in sight."""
        self._stale.add(number)
        self._draw_later()

    def draw_picture(
        self, path: str, x: int, y: int, width: int, height: int, mask: str = "", version: int = 0,
        crop: tuple[int, ...] = (),
    ) -> str:  # fmt: skip
        """Draw the image at `path` centred in a rectangle, or a placeholder until it is decoded.

        mask, version, crop: as of PictureKey. Returns why it can't be decoded; "" where it can, or is not yet known.
        """
        key = PictureKey(path, width, height, mask, version, crop)
        self._of_cell[key] = None
        theme = self.app.theme
        photo = self._photos.get(key)
        middle = x + width // 2, y + height // 2
        if isinstance(photo, ImageTk.PhotoImage):
            self.canvas.create_image(*middle, image=photo)
            left, top = middle[0] - photo.width() // 2, middle[1] - photo.height() // 2
            edge = left - 1, top - 1, left + photo.width(), top + photo.height()
            self.canvas.create_rectangle(*edge, outline=theme.now(theme.line))  # the edge of a white image
            return ""
        self.canvas.create_rectangle(x, y, x + width, y + height, fill=theme.now(theme.control), width=0)
        if photo is None:
            return ""
        reason = f"can't be read: {photo}"[:100]
        colour, font = theme.now(theme.error), theme.plain_font(11)
        self.canvas.create_text(*middle, text=reason, width=width - 8, justify="center", fill=colour, font=font)
        return photo

    def draw_text(
        self,
        x: int,
        y: int,
        text: str,
        width: int,
        size: int = 12,
        colour: Pair | None = None,
        weight: Literal["normal", "bold"] = "normal",
        is_name: bool = False,
    ) -> None:
        """Draw one line of text, cut to `width` pixels as by TextWidths.cut, with its upper left corner at x, y."""
        theme = self.app.theme
        fill, font = theme.now(colour or theme.text), theme.plain_font(size, weight)
        text = self.texts.cut(visible_line(text), width, font, is_name)
        self.canvas.create_text(x, y, text=text, anchor="nw", fill=fill, font=font)

    def draw_lines(self, x: int, y: int, text: str, width: int, size: int, colour: Pair) -> int:
        """Draw a text in as many lines as it needs, with its upper left corner at x, y. Returns its lower edge."""
        fill, font = self.app.theme.now(colour), self.app.theme.plain_font(size)
        item = self.canvas.create_text_now(x, y, text=text, width=width, anchor="nw", fill=fill, font=font)
        return self.canvas.bbox(item)[3]

    def draw_choice(self, number: int, x: int, y: int, width: int, height: int) -> None:
        """Draw the frame around the selected cell, which also tells whether the focus is here."""
        self._frames_choice = True
        if number == self.chosen:
            theme = self.app.theme
            colour, line = (theme.focus, 3) if self._is_focused else (theme.selected, 2)
            outline, thickness = theme.now(colour), max(2, theme.scaled(line))
            self.canvas.create_rectangle(x, y, x + width, y + height, outline=outline, width=thickness)

    # --- drawing -----------------------------------------------------------------------------------------------------

    def _draw_later(self) -> None:
        if self._draw_job is None:
            self._draw_job = self.canvas.after_idle(self._draw_stale)

    def _draw_stale(self) -> None:
        self._draw_job = None
        stale, self._stale = self._stale, set()
        if self._is_stale:
            self._is_stale = False
            self._paint()
            return
        self._shift()
        missing = [number for number in self._numbers_in_sight() if number not in self._items]
        waiting = [*missing, *sorted(stale & self._items.keys())]
        again = waiting[: self._cells_of_a_slice()]
        self._delete([number for number in again if number in self._items])
        self._paint_cells(again)
        self._load()
        if rest := waiting[len(again) :]:
            self._stale.update(rest)
            self._draw_later()  # once waiting events are handled

    def _cells_of_a_slice(self) -> int:
        """How many cells are drawn again before events are handled."""
        width, height = self.cell_size()
        return max(1, SLICE_BYTES // (4 * width * height))

    def _paint_cells(self, numbers: Iterable[int]) -> None:
        """Draw these cells, and the headers over them."""
        self.canvas.delete(HEADERS)
        with self.canvas.together():
            for number in numbers:
                self._of_cell = self._pictures[number] = {}
                self.canvas.tag = self._items[number] = f"cell{number}"
                self.draw_cell(number, *self.corner_of(number))
            self.canvas.tag = HEADERS
            if self.count:
                self.draw_headers()

    def _delete(self, numbers: Sequence[int]) -> None:
        """Remove what is drawn of these cells."""
        if numbers:
            self.canvas.delete(*(self._items.pop(number) for number in numbers))
        for number in numbers:
            del self._pictures[number]

    def _shift(self) -> None:
        """Move what is drawn to where it has been scrolled, and remove what has left the sight."""
        self._keep_inside()
        moved = self._drawn_at[0] - self._offset[0], self._drawn_at[1] - self._offset[1]
        if moved == (0, 0):
            return
        self.moved_at = time.monotonic()
        self._delete(sorted(self._items.keys() - set(self._numbers_in_sight())))
        self.canvas.move("all", *moved)
        self._drawn_at = self._offset[0], self._offset[1]
        self._move_scrollbars()

    def _paint(self) -> None:
        self.canvas.delete("all")
        self._items, self._pictures = {}, {}
        theme, is_framed = self.app.theme, self._frames_choice and self.chosen is not None  # never two frames
        ring = theme.card if is_framed else theme.focus
        self.canvas.configure(bg=theme.now(theme.card), highlightcolor=theme.now(ring))
        self._keep_inside()
        self._drawn_at = self._offset[0], self._offset[1]
        self._paint_cells(self._numbers_in_sight())
        if not self.count:
            middle = self.shown_size[0] // 2, self.shown_size[1] // 2
            self.canvas.create_text(
                *middle, text=self.empty_text(), fill=theme.now(theme.muted), font=theme.plain_font(13),
                width=max(40, self.shown_size[0] - 40), justify="center",
            )  # fmt: skip
        self._move_scrollbars()
        self._load()

    def _take_focus(self, is_focused: bool) -> None:
        self._is_focused = is_focused
        if self.chosen is not None:
            self.redraw_cell(self.chosen)

    @property
    def _in_sight(self) -> dict[PictureKey, None]:
        """The images of the drawn cells, in their order."""
        return {key: None for number in self._pictures for key in self._pictures[number]}

    @property
    def _is_loading(self) -> bool:
        return self._num_loading > 0

    def _load(self) -> None:
        """Decode missing visible images in threads, each image in one."""
        if self._num_loading >= self.num_loaders:
            return
        wanted = [key for key in self._in_sight if key not in self._photos and key not in self._loading]
        free = self.num_loaders - self._num_loading
        for share in (wanted[number::free] for number in range(min(free, len(wanted)))):
            self._load_in_thread(share)

    def _load_in_thread(self, keys: Sequence[PictureKey]) -> None:
        self._num_loading += 1
        self._loading.update(dict.fromkeys(keys))
        photos = self._photos

        def end() -> None:
            self._num_loading -= 1
            for key in keys:
                self._loading.pop(key, None)

        def take(decoded: Sequence[tuple[PictureKey, Image.Image | str]]) -> None:
            end()
            self._take(decoded if photos is self._photos else ())

        def fail(error: Exception) -> None:
            end()
            self._take_failure(error)

        decode = self.decode
        self.app.in_background(lambda: decode(keys), take, fail)

    def _take(self, decoded: Sequence[tuple[PictureKey, Image.Image | str]]) -> None:
        if not self.winfo_exists():
            return
        for key, picture in decoded:
            self._photos[key] = picture if isinstance(picture, str) else ImageTk.PhotoImage(picture, master=self.canvas)
        self._drop_old()
        came = {key for key, _ in decoded}
        self._stale.update(number for number, keys in self._pictures.items() if not came.isdisjoint(keys))
        self._draw_later()

    def _take_failure(self, error: Exception) -> None:
        self.app.show_message(f"The images can't be shown: {error}", "error")

    def _drop_old(self) -> None:
        """Limit the cache of invisible images to `cache_bytes`."""
        in_sight = self._in_sight
        for key in in_sight:
            if key in self._photos:
                self._photos.move_to_end(key)
        spare = self.cache_bytes - sum(key.width * key.height * 4 for key in self._photos)
        for key in list(self._photos):
            if spare >= 0 or key in in_sight:
                break
            del self._photos[key]
            spare += key.width * key.height * 4

    # --- events ------------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        self.texts = TextWidths(self.canvas)
        self._stop_listening = self.app.theme.on_change(self._restyle)
        self._restyle()
        bind = self.canvas.bind
        bind("<Configure>", lambda event: self._take_size(event.width, event.height))
        bind("<Button-1>", self._on_click)
        bind("<Double-Button-1>", lambda event: self._on_return())
        for key in ("Left", "Right", "Up", "Down", "Prior", "Next", "Home", "End"):
            bind(f"<{key}>", self._on_key)
        bind("<Return>", lambda event: self._on_return())
        bind("<FocusIn>", lambda event: self._take_focus(True), add="+")
        bind("<FocusOut>", lambda event: self._take_focus(False), add="+")

    def _take_size(self, width: int, height: int) -> None:
        self.shown_size = width, height
        self.redraw()

    def _restyle(self) -> None:
        theme = self.app.theme
        self.canvas.configure(highlightbackground=theme.now(theme.card))
        self.texts.forget()
        self.redraw()

    def _on_click(self, event: tk.Event) -> None:
        self.canvas.focus_set()
        number = self.cell_at(event.x, event.y)
        if number is not None:
            self.choose(number)

    def _on_return(self) -> str:
        if self.chosen is not None and self.on_open:
            self.on_open(self.chosen)
        return "break"

    def _on_key(self, event: tk.Event) -> str:
        if not self.count:
            return "break"
        columns = self.num_columns()
        rows_shown = max(1, self._content()[1][1] // self.cell_size()[1])
        steps = {
            "Left": -1, "Right": 1, "Up": -columns, "Down": columns, "Prior": -columns * rows_shown,
            "Next": columns * rows_shown, "Home": -self.count, "End": self.count,
        }  # fmt: skip
        place = None if self.chosen is None else self.place_of(self.chosen)
        place = 0 if place is None else place + steps[event.keysym]
        self.choose(self.number_at(min(max(0, place), self.count - 1)))
        return "break"

    def destroy(self) -> None:
        self._stop_listening()
        if self._draw_job is not None:
            self.canvas.after_cancel(self._draw_job)
        super().destroy()
        # A widget is part of reference cycles, which Python's collector may free in any thread, and a Tk image raises
        # if it is freed in any thread but Tk's.
        self._photos.clear()
