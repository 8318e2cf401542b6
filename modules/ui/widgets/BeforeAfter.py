"""Compare two images by moving a border between them."""

from __future__ import annotations

import tkinter as tk
from typing import TYPE_CHECKING, Literal

import customtkinter as ctk
from PIL import Image, ImageTk

from modules.ui.models.decoding import fit_inside
from modules.ui.widgets.fitting import cut_text

if TYPE_CHECKING:
    from modules.ui.App import App

GAP = 4  # pixels between the titles
KEY_SHARE = 0.05  # of the width, per key press


class BeforeAfter(ctk.CTkFrame):
    """`before` is left of the border, `after` right of it. The pointer, Left, Right, Home and End move the border."""

    def __init__(self, parent: tk.Misc, app: App):
        super().__init__(parent, fg_color="transparent")
        self.app = app
        self.share = 0.5  # of the width that shows `before`
        self._pictures: tuple[Image.Image, Image.Image] | None = None  # in their original size
        self._fitted: tuple[Image.Image, Image.Image] | None = None  # scaled to the available space
        self._photo: ImageTk.PhotoImage | None = None
        self._titles = "", ""
        self._message = ""
        self.grid_rowconfigure(0, weight=1)
        self.grid_columnconfigure(0, weight=1)
        self.canvas = tk.Canvas(self, width=10, height=10, bd=0, highlightthickness=2, takefocus=True)
        self.canvas.grid(row=0, column=0, sticky="nsew")
        self.canvas.bind("<Configure>", lambda event: self._fit())
        for event in ("<Button-1>", "<B1-Motion>"):
            self.canvas.bind(event, self._on_drag)
        for key in ("Left", "Right", "Home", "End"):
            self.canvas.bind(f"<{key}>", self._on_key)
        self._stop_listening = app.theme.on_change(self._paint)

    def show(self, before: Image.Image, after: Image.Image, titles: tuple[str, str]) -> None:
        """Compare two images; `after` is resized to the size of `before`."""
        self._pictures, self._titles, self._message = (before, after), titles, ""
        self._fit()

    def show_message(self, text: str) -> None:
        """Show a sentence instead of images."""
        self._pictures = self._fitted = self._photo = None
        self._message = text
        self._paint()

    def move_to(self, share: float) -> None:
        """Move the border. share: of the width that shows `before`."""
        self.share = min(max(share, 0.0), 1.0)
        self._paint()

    def _fit(self) -> None:
        if self._pictures is not None:
            size = max(1, self.canvas.winfo_width() - 4), max(1, self.canvas.winfo_height() - 4)
            before, after = (fit_inside(picture, *size) for picture in self._pictures)
            if after.size != before.size:
                after = after.resize(before.size, Image.Resampling.LANCZOS)
            self._fitted = before, after
            self._photo = ImageTk.PhotoImage(before, master=self.canvas)
        self._paint()

    def _paint(self) -> None:
        theme, canvas = self.app.theme, self.canvas
        canvas.delete("all")
        canvas.configure(
            bg=theme.now(theme.card), highlightcolor=theme.now(theme.focus), highlightbackground=theme.now(theme.card)
        )
        middle = canvas.winfo_width() // 2, canvas.winfo_height() // 2
        if self._fitted is None or self._photo is None:
            font = theme.plain_font(13)
            width = max(40, canvas.winfo_width() - 20)
            canvas.create_text(
                *middle, text=self._message, width=width, justify="center", fill=theme.now(theme.muted), font=font
            )
            return
        before, after = self._fitted
        border = round(self.share * before.width)
        shown = after.copy()
        shown.paste(before.crop((0, 0, border, before.height)), (0, 0))
        self._photo.paste(shown)  # reuses one Tk image while the border moves
        canvas.create_image(*middle, image=self._photo)
        left, top = middle[0] - before.width // 2, middle[1] - before.height // 2
        x = left + border
        canvas.create_line(x, top, x, top + before.height, fill="#000000", width=3)
        canvas.create_line(x, top, x, top + before.height, fill="#ffffff", width=1)
        self._draw_titles(left, top, before.width)

    def _draw_titles(self, left: int, top: int, width: int) -> None:
        """Draw each title at its side of the image; of one too narrow for both they reach beyond it."""
        canvas, font = self.canvas, self.app.theme.plain_font(11)

        def measure(text: str) -> int:
            return int(canvas.tk.call("font", "measure", font, f" {text} "))

        room = canvas.winfo_width() // 2 - GAP
        titles = [cut_text(title, room, measure) for title in self._titles]
        first, last = map(measure, titles)
        right = left + width
        if first + GAP + last > width:
            middle = (left + right) // 2
            left, right = min(left, middle - GAP // 2 - first), max(right, middle + GAP // 2 + last)
        self._draw_title(titles[0], left, top, "nw")
        self._draw_title(titles[1], right, top, "ne")

    def _draw_title(self, text: str, x: int, y: int, anchor: Literal["nw", "ne"]) -> None:
        """Draw a title on a dark background, as the image may have any colour."""
        canvas, font = self.canvas, self.app.theme.plain_font(11)
        item = canvas.create_text(x, y, text=f" {text} ", anchor=anchor, fill="#ffffff", font=font, tags="title")
        plate = canvas.create_rectangle(*canvas.bbox(item), fill="#202020", width=0)
        canvas.tag_lower(plate, item)

    def _on_drag(self, event: tk.Event) -> None:
        if self._fitted is not None:
            width = self._fitted[0].width
            left = self.canvas.winfo_width() // 2 - width // 2
            self.move_to((event.x - left) / width)

    def _on_key(self, event: tk.Event) -> str:
        places = {"Left": self.share - KEY_SHARE, "Right": self.share + KEY_SHARE, "Home": 0.0, "End": 1.0}
        self.move_to(places[event.keysym])
        return "break"

    def destroy(self) -> None:
        self._stop_listening()
        super().destroy()
        self._photo = None  # freed here, on the Tk thread
