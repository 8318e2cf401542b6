"""The window that divides videos by scene and length, or picks frames of them, with a preview of what it finds."""

from __future__ import annotations

import os
import tkinter as tk
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import customtkinter as ctk

from modules.config.errors import UserError
from modules.ui.models.decoding import PictureKey, fit_inside
from modules.ui.models.FolderRun import Piece
from modules.ui.theme import Theme
from modules.ui.widgets.PictureCanvas import PictureCanvas
from modules.ui.windows.FolderWindow import FolderWindow

if TYPE_CHECKING:
    from PIL import Image

    from modules.ui.App import App

PIECES, FRAMES = "Pieces", "Single frames"
EVERY = "One image every"
SIDE, GAP, LINE = 150, 10, 17  # unscaled pixels of a preview


class PieceGrid(PictureCanvas):
    """The first frames of pieces, with the name of their video and their times."""

    def __init__(self, parent: tk.Misc, app: App):
        self.pieces: list[Piece] = []
        self.has_ends = True
        super().__init__(parent, app)
        self.decode = self._shrink

    def show(self, pieces: Sequence[Piece]) -> None:
        """Show these: none, or those shown before and more."""
        self.pieces = list(pieces)
        if not pieces:
            self.forget_pictures()
        self.show_count(len(pieces))

    def empty_text(self) -> str:
        return "Preview shows where pieces begin, and writes nothing."

    def cell_size(self) -> tuple[int, int]:
        scaled = self.app.theme.scaled
        return scaled(SIDE + GAP), scaled(SIDE * 9 // 16 + GAP + 2 * LINE)

    def draw_cell(self, number: int, x: int, y: int) -> None:
        scaled, piece = self.app.theme.scaled, self.pieces[number]
        width, height, left, top = scaled(SIDE), scaled(SIDE * 9 // 16), x + scaled(GAP) // 2, y + scaled(GAP) // 2
        self.draw_picture(str(number), left, top, width, height)
        self.draw_choice(number, left - 1, top - 1, width + 1, height + 1)
        times = spoken_seconds(piece.start)
        if self.has_ends:
            times += f" to {spoken_seconds(piece.end)}"
        self.draw_text(left, top + height + scaled(1), times, width, size=12)
        name = os.path.basename(piece.path)
        self.draw_text(left, top + height + scaled(1 + LINE), name, width, size=11, colour=Theme.muted)

    def _shrink(self, keys: Sequence[PictureKey]) -> list[tuple[PictureKey, Image.Image | str]]:
        return [(key, fit_inside(self.pieces[int(key[0])].image, key[1], key[2])) for key in keys]


class SplitVideosWindow(FolderWindow):
    script = "split_videos.py"
    heading = "Split videos"
    suffix = "-clips"
    size, min_size = "740x680", (620, 320)

    def build_choices(self) -> None:
        font = self.app.theme.font()
        row = ctk.CTkFrame(self.card, fg_color="transparent")  # one for both, so that a low window shows whole pieces
        self.kind = ctk.CTkSegmentedButton(
            row, values=[PIECES, FRAMES], font=font, command=lambda kind: self._show_choices()
        )
        self.kind.set(PIECES)
        self.kind.grid(row=0, column=0)
        self.scenes = ctk.CTkCheckBox(row, text="Divide where another scene begins", font=font)
        self.scenes.select()
        self.scenes.grid(row=0, column=1, padx=(16, 0))
        self.lay(1, "Videos become", row)
        row.grid(columnspan=2)
        self._rows: dict[str, list[tk.Misc]] = {PIECES: [self.scenes], FRAMES: []}
        self.seconds = self._entry(3, PIECES, "At most", "5", "seconds; longer scenes are divided equally")
        self.least = self._entry(4, PIECES, "At least", "0.5", "seconds; shorter pieces are left out")
        self.every = self._entry(5, FRAMES, EVERY, "2", "seconds, the sharpest")
        self.grid_rowconfigure(1, weight=1)
        self.grid_view = PieceGrid(self, self.app)
        self.grid_view.grid(row=1, column=0, sticky="nsew", padx=12, pady=(0, 8))
        self._show_choices()

    def add_buttons(self, row: ctk.CTkFrame) -> None:
        font = self.app.theme.font()
        self.buttons["preview"] = ctk.CTkButton(row, text="Preview", width=90, font=font, command=self.preview)

    def preview(self) -> None:
        """Show the first pieces that would be written."""
        if self.run is None:
            self.grid_view.has_ends = self.kind.get() == PIECES
            self.grid_view.show([])
            self.start("--preview")

    def options(self) -> list[str]:
        if self.kind.get() == FRAMES:
            return ["--frames", self._number(self.every, EVERY)]
        chosen = ["--scenes"] if self.scenes.get() else []
        if self.seconds.get().strip():
            chosen += ["--seconds", self._number(self.seconds, "At most")]
        if not chosen:
            raise UserError("Divide by scenes, or type a number of seconds: else nothing would be divided.")
        return [*chosen, "--least-seconds", self._number(self.least, "At least")]

    def actions(self) -> Sequence[tuple[str, Any]]:
        return (("Add to dataset", self.add_concept),)

    def take_pieces(self, pieces: Sequence[Piece]) -> None:
        self.grid_view.show([*self.grid_view.pieces, *pieces])

    def _number(self, entry: ctk.CTkEntry, name: str) -> str:
        """Raises UserError."""
        text = entry.get().strip().replace(",", ".")
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value < 1e6:
            raise UserError(f"{name} {entry.get()!r}: is not a number of seconds above 0; type one such as 5.")
        return f"{value:g}"

    def _show_choices(self) -> None:
        for kind, widgets in self._rows.items():
            for widget in widgets:
                (widget.grid if kind == self.kind.get() else widget.grid_remove)()  # type: ignore[attr-defined] # in grids

    def _entry(self, row: int, kind: str, name: str, value: str, unit: str) -> ctk.CTkEntry:
        font = self.app.theme.font()
        label = ctk.CTkLabel(self.card, text=name, font=font, anchor="w")
        label.grid(row=row, column=0, sticky="w", padx=(12, 8), pady=(0, 8))
        frame = ctk.CTkFrame(self.card, fg_color="transparent")
        frame.grid(row=row, column=1, columnspan=2, sticky="w", pady=(0, 8))
        entry = ctk.CTkEntry(frame, width=70, font=font)
        entry.insert(0, value)
        entry.grid(row=0, column=0)
        after = ctk.CTkLabel(frame, text=unit, font=self.app.theme.font(12), text_color=Theme.muted)
        after.grid(row=0, column=1, padx=8)
        self._rows[kind] += [label, frame]
        return entry


def spoken_seconds(seconds: float) -> str:
    """Such as 0:04.2 or 1:02:07.5."""
    tenths = round(seconds * 10)
    minutes, rest = divmod(tenths, 600)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}:{minutes:02d}" if hours else str(minutes)) + f":{rest / 10:04.1f}"
