"""The samples of the run, with a row for each prompt and seed and a column for each step, and their comparison."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.visible_text import visible_line
from modules.data.images import load_image
from modules.ui.models.desktop import open_file
from modules.ui.models.SampleTable import SampleRow, SampleTable, arrange_samples
from modules.ui.widgets.BeforeAfter import BeforeAfter
from modules.ui.widgets.fitting import lay_in_rows, wrap_to
from modules.ui.widgets.PictureCanvas import PictureCanvas

if TYPE_CHECKING:
    from PIL import Image

    from modules.ui.App import App

UPDATE_SECONDS = 0.5
SIDES = {"Small": 80, "Medium": 128, "Large": 224}
GAP = 6
NAMES_WIDTH, STEPS_HEIGHT = 150, 24
MAX_TITLE = 160
COMPARED = 1024  # maximum side in pixels of compared images, which is enough for a screen


class Gallery(ctk.CTkFrame):
    """The samples of the app's run, which its title names. Selecting one compares it with the first one in its row."""

    def __init__(self, parent: tk.Misc, app: App):
        super().__init__(parent)
        self.app = app
        self.table = SampleTable((), (), {})
        self._known: tuple | None = None
        self._row: SampleRow | None = None  # being compared
        self._compared: tuple[str, str] | None = None  # the images requested last
        self._video: Path | None = None  # of the later one of them
        self.grid_columnconfigure(0, weight=3, uniform="gallery")
        self.grid_columnconfigure(1, weight=2, uniform="gallery")
        self.grid_rowconfigure(1, weight=1)
        self.grid_view = SampleGrid(self, app, self._compare_cell)
        self.grid_view.grid(row=1, column=0, sticky="nsew", padx=(8, 4), pady=(0, 8))
        self._stop_updating: Callable[[], None] = lambda: None
        self._steps = self._build()
        app.in_slices(self._steps)

    def update_samples(self) -> None:
        """Show new samples."""
        samples, folder = self.app.run.state.samples, self.app.run.state.folder
        known = (folder, len(samples), samples[-1] if samples else None)
        if known == self._known:
            return
        # fewer samples than before: a new run in the same folder
        is_other_run = self._known is None or folder != self._known[0] or len(samples) < self._known[1]
        self._known = known
        self.table = arrange_samples(samples)
        self.grid_view.show(self.table)
        num_pictures = len(self.table.paths)
        count = f"{counted(num_pictures, 'image')} of {counted(len(self.table.steps), 'step')}"
        self._count.configure(text=count if samples else "")
        if is_other_run:
            self.title.configure(text=f"Gallery of {folder.name}" if folder else "Gallery")
            self._row = self._compared = None
            self._offer_video(None)
            for menu in (self._before, self._after):
                menu.configure(values=[""])
                menu.set("")
            self._prompt.configure(text="")
            self._comparison.show_message("Choose an image to compare it with an earlier one.")
        elif self._row in self.table.rows:
            self._offer_steps(self._row)

    def compare(self, row: SampleRow, before: int, after: int) -> None:
        """Compare the images of two steps of a row."""
        self._row = row
        self._offer_steps(row)
        self._before.set(f"{before:,}")
        self._after.set(f"{after:,}")
        self._prompt.configure(text=f"{row.title[:MAX_TITLE]}  {row.seed_text}")
        video = Path(self.table.paths[row, after]).with_suffix(".mp4")
        self._offer_video(video if video.is_file() else None)
        self._compared = paths = self.table.paths[row, before], self.table.paths[row, after]
        titles = f"step {before:,}", f"step {after:,}"

        def show(pictures: tuple[Image.Image, Image.Image]) -> None:
            if self.winfo_exists() and paths == self._compared:  # no others have been requested since
                self._comparison.show(*pictures, titles)

        self.app.in_background(lambda: _load_both(paths), show, lambda error: self._tell_failure(paths, error))

    def play(self) -> None:
        """Show the video of the later one of the compared samples in the desktop's player."""
        if self._video is not None:
            try:
                open_file(self._video)
            except UserError as error:
                self._comparison.show_message(str(error))

    def _offer_video(self, video: Path | None) -> None:
        self._video = video
        if video:
            self._play.grid(row=1, column=1, padx=(0, 6))
        else:
            self._play.grid_remove()

    def _compare_cell(self, number: int) -> None:
        row, column = divmod(number, len(self.table.steps))
        chosen, step = self.table.rows[row], self.table.steps[column]
        steps = self._steps_of(chosen)
        if step in steps:
            self.compare(chosen, steps[0], step)

    def _compare_chosen_steps(self, _: str) -> None:
        if self._row is not None:
            before, after = (int(menu.get().replace(",", "")) for menu in (self._before, self._after))
            self.compare(self._row, before, after)

    def _steps_of(self, row: SampleRow) -> list[int]:
        return [step for step in self.table.steps if (row, step) in self.table.paths]

    def _offer_steps(self, row: SampleRow) -> None:
        values = [f"{step:,}" for step in self._steps_of(row)]
        for menu in (self._before, self._after):
            menu.configure(values=values)

    def _tell_failure(self, paths: tuple[str, str], error: Exception) -> None:
        if not isinstance(error, UserError):
            raise error
        if self.winfo_exists() and paths == self._compared:
            self._comparison.show_message(str(error))

    # --- widgets -----------------------------------------------------------------------------------------------------

    def _build(self) -> Generator[None, None, None]:
        """Build the gallery in slices, so that opening it never stalls the window."""
        theme = self.app.theme
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=0, column=0, columnspan=2, sticky="ew", padx=10, pady=(8, 4))
        self.title = ctk.CTkLabel(bar, text="Gallery", font=theme.font(15, "bold"))
        self.title.pack(side="left", padx=(0, 12))
        self._count = ctk.CTkLabel(bar, text="", text_color=theme.muted)
        self._count.pack(side="left")
        yield
        size = ctk.CTkOptionMenu(bar, values=list(SIDES), width=110, command=self._resize)
        size.set("Medium")
        size.pack(side="right")
        yield
        yield from self._build_comparison()
        self._stop_updating = self.app.every(UPDATE_SECONDS, self.update_samples)

    def _resize(self, size: str) -> None:
        self.grid_view.side = SIDES[size]
        self.grid_view.redraw()

    def _build_comparison(self) -> Generator[None, None, None]:
        theme = self.app.theme
        side = ctk.CTkFrame(self, fg_color="transparent")
        side.grid(row=1, column=1, sticky="nsew", padx=(4, 8), pady=(0, 8))
        side.grid_rowconfigure(2, weight=1)
        side.grid_columnconfigure(0, weight=1)
        bar = ctk.CTkFrame(side, fg_color="transparent")
        bar.grid(row=0, column=0, sticky="ew", padx=6)
        menus: list[ctk.CTkOptionMenu] = []
        pairs: list[ctk.CTkFrame] = []
        for text in ("Before", "After"):
            pair = ctk.CTkFrame(bar, fg_color="transparent")
            ctk.CTkLabel(pair, text=text, width=44, anchor="w", font=theme.font(), text_color=theme.muted).grid()
            menus.append(ctk.CTkOptionMenu(pair, values=[""], width=84, command=self._compare_chosen_steps))
            menus[-1].grid(row=0, column=1)
            pairs.append(pair)
            yield
        lay_in_rows(bar, pairs, theme)
        self._before, self._after = menus
        self._prompt = ctk.CTkLabel(side, text="", anchor="w", justify="left", text_color=theme.muted)
        self._prompt.grid(row=1, column=0, sticky="ew", padx=6, pady=4)
        self._play = ctk.CTkButton(side, text="Play video", width=96, font=theme.font(), command=self.play)
        wrap_to(side, self._prompt, theme)
        self._comparison = BeforeAfter(side, self.app)
        self._comparison.grid(row=2, column=0, columnspan=2, sticky="nsew")
        yield

    def destroy(self) -> None:
        self._stop_updating()
        self._steps.close()
        super().destroy()


class SampleGrid(PictureCanvas):
    """The table of samples; the prompts on the left and the steps at the top stay visible."""

    def __init__(self, parent: tk.Misc, app: App, on_choose: Callable[[int], None]):
        self.table = SampleTable((), (), {})
        self.side = SIDES["Medium"]
        super().__init__(parent, app, on_choose)

    def show(self, table: SampleTable) -> None:
        """Show a table; if the newest step was visible, scroll to the new one."""
        content, shown = self._content()
        is_at_end = self._offset[0] + shown[0] >= content[0]
        chosen = self._cell(self.chosen)
        self.table = table
        self.chosen = self._number(*chosen) if chosen else None
        self.show_count(len(table.rows) * len(table.steps))
        if is_at_end:
            self._offset[0] = self._content()[0][0]

    def empty_text(self) -> str:
        return "No samples yet. They appear here as the run makes them."

    def num_columns(self) -> int:
        return max(1, len(self.table.steps))

    def cell_size(self) -> tuple[int, int]:
        side = self.app.theme.scaled(self.side + GAP)
        return side, side

    def margins(self) -> tuple[int, int]:
        scaled = self.app.theme.scaled
        names = min(scaled(NAMES_WIDTH), self.canvas.winfo_width() // 3)
        return (names, scaled(STEPS_HEIGHT)) if self.count else (0, 0)

    def draw_cell(self, number: int, x: int, y: int) -> None:
        side = self.app.theme.scaled(self.side)
        path = self.table.path(*divmod(number, len(self.table.steps)))
        if path is not None:
            self.draw_picture(path, x, y, side, side)
        self.draw_choice(number, x, y, side, side)

    def draw_headers(self) -> None:
        theme, canvas = self.app.theme, self.canvas
        left, top = self.margins()
        size = self.cell_size()[0]
        background = theme.now(theme.card)
        canvas.create_rectangle(0, 0, canvas.winfo_width(), top, fill=background, width=0)
        canvas.create_rectangle(0, 0, left, canvas.winfo_height(), fill=background, width=0)
        numbers = self._numbers_in_sight()
        columns = len(self.table.steps)
        for column in sorted({number % columns for number in numbers}):
            x, _ = self.corner_of(column)
            if x >= left:
                self.draw_text(x, theme.scaled(4), f"step {self.table.steps[column]:,}", size, 11, theme.muted)
        for row in sorted({number // columns for number in numbers}):
            _, y = self.corner_of(row * columns)
            y = min(max(y, top), y + size - theme.scaled(40))  # visible as long as the row is
            self._draw_name(self.table.rows[row], y, left, size)
        canvas.create_rectangle(0, 0, left, top, fill=background, width=0)

    def _draw_name(self, row: SampleRow, y: int, width: int, height: int) -> None:
        """Draw the prompt, in as many lines as fit, and the seed."""
        theme = self.app.theme
        num_letters = max(1, height // theme.scaled(16) - 1) * (width // theme.scaled(8))
        title = visible_line(row.title)
        title = title if len(title) <= num_letters else title[: num_letters - 1] + "…"
        text = f"{title}\n{row.seed_text}"
        self.canvas.create_text(
            theme.scaled(4), y, text=text, anchor="nw", width=width - theme.scaled(10), fill=theme.now(theme.text),
            font=theme.plain_font(12),
        )  # fmt: skip

    def _cell(self, number: int | None) -> tuple[SampleRow, int] | None:
        if number is None or not self.table.steps:
            return None
        row, column = divmod(number, len(self.table.steps))
        return self.table.rows[row], self.table.steps[column]

    def _number(self, row: SampleRow, step: int) -> int | None:
        """The current number of a cell; None if it no longer exists."""
        if row not in self.table.rows or step not in self.table.steps:
            return None
        return self.table.rows.index(row) * len(self.table.steps) + self.table.steps.index(step)


def _load_both(paths: tuple[str, str]) -> tuple[Image.Image, Image.Image]:
    """Load two images. Raises ImageError."""
    before, after = (load_image(path, at_least=(COMPARED, COMPARED)) for path in paths)
    return before, after
