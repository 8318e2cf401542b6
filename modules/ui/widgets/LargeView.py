"""One image as large as there is room, or a frame of a video with a slider over its time."""

from __future__ import annotations

import tkinter as tk
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import customtkinter as ctk
from PIL import ImageTk

from modules.ui.models.decoding import View, decode_view

if TYPE_CHECKING:
    from modules.ui.App import App

LINES = (("#000000", 3), ("#ffffff", 1))  # around the crop: color and width, seen on any image
RESIZE_MS = 120  # after the last change of the size
KEY_SECONDS = 0.1  # of a video, by which Left and Right move
KEY_SHARE = 0.1  # the same with Page Up and Down


class _Wish(NamedTuple):
    """What is to be shown. at: seconds of a video. mask, version: as of PictureKey."""

    path: str
    folder_fps: float | None
    at: float
    size: tuple[int, int]
    mask: str
    version: int


class LargeView(ctk.CTkFrame):
    """Decodes in a thread, one image at a time and always the one that is wanted last.

    Of a video Left and Right, Page Up and Down, Home and End move in time.
    """

    def __init__(self, parent: tk.Misc, app: App):
        super().__init__(parent, fg_color="transparent")
        self.app = app
        self.path = ""
        self.seconds = 0.0  # how long the shown video lasts
        self.at = 0.0
        self._folder_fps: float | None = None
        self._mask, self._version = "", 0
        self._crop: tuple[int, ...] = ()
        self._message = ""
        self._photo: ImageTk.PhotoImage | None = None
        self._shown: _Wish | None = None
        self._loading: _Wish | None = None
        self._resize_job: str | None = None
        self.grid_rowconfigure(0, weight=1)
        self.grid_columnconfigure(0, weight=1)
        self.canvas = tk.Canvas(self, width=10, height=10, bd=0, highlightthickness=2)
        self.canvas.grid(row=0, column=0, sticky="nsew")
        self._timeline = ctk.CTkFrame(self, fg_color="transparent")
        self._timeline.grid_columnconfigure(0, weight=1)
        self._slider = ctk.CTkSlider(self._timeline, height=16, from_=0, to=1, command=self._seek)
        self._slider.grid(row=0, column=0, sticky="ew")
        self._time = ctk.CTkLabel(self._timeline, text="", width=96, anchor="e", text_color=app.theme.muted)
        self._time.grid(row=0, column=1, padx=(8, 0))
        self._timeline.grid(row=1, column=0, sticky="ew", padx=4, pady=(4, 0))
        self._timeline.grid_remove()
        self.canvas.bind("<Configure>", lambda event: self._load_later())
        self.canvas.bind("<Button-1>", lambda event: self.canvas.focus_set())
        for key, seconds, share in (
            ("Left", -KEY_SECONDS, 0), ("Right", KEY_SECONDS, 0), ("Prior", 0, -KEY_SHARE), ("Next", 0, KEY_SHARE),
            ("Home", 0, -1), ("End", 0, 1),
        ):  # fmt: skip
            self.canvas.bind(f"<{key}>", partial(self._step, seconds, share))
        self._stop_listening = app.theme.on_change(self._paint)
        self._paint()

    def show(self, path: str, folder_fps: float | None = None, mask: str = "", version: int = 0) -> None:
        """Show the image or the first frame at `path`; "": nothing. folder_fps: as in VideoInfo.

        mask, version: as of PictureKey.
        """
        self._mask, self._version = mask, version
        if path == self.path:
            self._load()
            return
        self.path, self._folder_fps, self.at, self.seconds, self._message = path, folder_fps, 0.0, 0.0, ""
        if not path:
            self._photo = self._shown = None
            self._timeline.grid_remove()
            self._paint()
        self._load()

    def outline(self, crop: tuple[int, ...]) -> None:
        """Outline the part of the image that is trained. crop: as of PictureKey."""
        if crop != self._crop:
            self._crop = crop
            self._paint()

    def refresh(self) -> None:
        """Read the file again."""
        self._shown = None
        self._load()

    def _seek(self, at: float) -> None:
        self.at = min(max(0.0, at), self.seconds)
        self._show_time()
        self._load()

    def _step(self, seconds: float, share: float, event: tk.Event) -> str:
        if self.seconds:
            self._slider.set(min(max(0.0, self.at + seconds + share * self.seconds), self.seconds))
            self._seek(self._slider.get())
        return "break"

    def _show_time(self) -> None:
        self._time.configure(text=f"{self.at:.1f} / {self.seconds:.1f} s")

    def _load_later(self) -> None:
        if self._resize_job is not None:
            self.after_cancel(self._resize_job)
        self._resize_job = self.after(RESIZE_MS, self._load)

    def _load(self) -> None:
        self._resize_job = None
        size = max(1, self.canvas.winfo_width() - 4), max(1, self.canvas.winfo_height() - 4)
        wish = _Wish(self.path, self._folder_fps, self.at, size, self._mask, self._version)
        if not self.path or self._loading or wish == self._shown or size[0] < 10:
            return
        self._loading = wish

        def take(view: View) -> None:
            self._loading = None
            if self.winfo_exists():
                self._take(wish, view)
                self._load()  # what has been wanted meanwhile

        def fail(error: Exception) -> None:
            self._loading = None
            raise error

        self.app.in_background(
            lambda: decode_view(wish.path, *wish.size, wish.at, wish.folder_fps, wish.mask), take, fail
        )

    def _take(self, wish: _Wish, view: View) -> None:
        if wish.path != self.path:
            return
        self._shown = wish
        self._message = f"It can't be read: {view.reason}" if view.image is None else ""
        self._photo = None if view.image is None else ImageTk.PhotoImage(view.image, master=self.canvas)
        if view.seconds != self.seconds:
            self.seconds = view.seconds
            if view.seconds:
                self._slider.configure(to=view.seconds)
                self._slider.set(self.at)
        if self.seconds:
            self._show_time()
            self._timeline.grid()
        else:
            self._timeline.grid_remove()
        self.canvas.configure(takefocus=bool(self.seconds))
        self._paint()

    def _paint(self) -> None:
        theme, canvas = self.app.theme, self.canvas
        canvas.delete("all")
        canvas.configure(
            bg=theme.now(theme.card), highlightcolor=theme.now(theme.focus), highlightbackground=theme.now(theme.card)
        )
        middle = canvas.winfo_width() // 2, canvas.winfo_height() // 2
        if self._photo is not None:
            canvas.create_image(*middle, image=self._photo)
            left, top = middle[0] - self._photo.width() // 2, middle[1] - self._photo.height() // 2
            edge = left - 1, top - 1, left + self._photo.width(), top + self._photo.height()
            canvas.create_rectangle(*edge, outline=theme.now(theme.line))
            self._draw_crop(left, top, self._photo)
        elif self._message:
            width, font = max(40, canvas.winfo_width() - 40), theme.plain_font(13)
            canvas.create_text(
                *middle, text=self._message, width=width, justify="center", fill=theme.now(theme.error), font=font
            )

    def _draw_crop(self, left: int, top: int, photo: ImageTk.PhotoImage) -> None:
        if not self._crop:
            return
        x, y, width, height, *whole = self._crop
        across, down = photo.width() / whole[0], photo.height() / whole[1]
        box = left + x * across, top + y * down, left + (x + width) * across - 1, top + (y + height) * down - 1
        for color, line in LINES:
            self.canvas.create_rectangle(*box, outline=color, width=line, tags="crop")

    def destroy(self) -> None:
        self._stop_listening()
        if self._resize_job is not None:
            self.after_cancel(self._resize_job)
        super().destroy()
        self._photo = None  # freed here, on the Tk thread
