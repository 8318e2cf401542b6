"""The demo: what it is, some of its images, and a button that starts it."""

from __future__ import annotations

import tkinter
from typing import TYPE_CHECKING

from modules.config.installation import ROOT
from modules.ui.cards.Card import Card
from modules.ui.cards.CardCanvas import CardCanvas
from modules.ui.models.SettingsModel import FIRST_PRESET
from modules.ui.widgets.StartButton import StartButton

if TYPE_CHECKING:
    from PIL import Image

    from modules.ui.App import App

TEXT = (
    "A small model that draws the digits zero to seven learns eight and nine, in a few minutes and on any machine. "
    "Nothing is downloaded."
)
FOLDER = ROOT / "resources" / "demo" / "pictures"
NUM_IMAGES, SIDE, GAP = 8, 56, 8  # sizes unscaled


class DemoCard(Card):
    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, app, "Try the demo")
        self.images = DemoImages(self, app)
        self.images.grid(row=1, column=0, sticky="ew", padx=12, pady=(4, 8))
        self.add_note(2).configure(text=TEXT, font=app.theme.font())
        self.start = StartButton(self, app, "Start the demo", lambda: app.start_preset(FIRST_PRESET))
        self.start.grid(row=3, column=0, sticky="w", padx=12, pady=(10, 6))


class DemoImages(CardCanvas):
    """Some images of the demo, in as many rows of equal length as needed. They are read in a thread."""

    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, app)
        self.images: list[Image.Image] = []
        self._shown: list = []  # Tk's images, which exist as long as they are referred to
        self._shown_side = 0
        app.in_background(read_images, self._take)

    def contents(self) -> tuple:
        return (len(self.images),)

    def draw(self) -> None:
        from PIL import Image, ImageTk  # not needed before the window is first drawn

        side, step = self._app.theme.scaled(SIDE), self._app.theme.scaled(SIDE + GAP)
        fitting = max(1, (self.winfo_width() + step - side) // step)
        columns = max(count for count in (1, 2, 4, 8) if count <= fitting)
        self._set_height(-(-NUM_IMAGES // columns) * step - (step - side))
        if side != self._shown_side or len(self._shown) != len(self.images):  # not for each width of the layout
            self._shown_side = side
            self._shown = [
                ImageTk.PhotoImage(image.resize((side, side), Image.Resampling.BICUBIC), master=self)
                for image in self.images
            ]
        for number, image in enumerate(self._shown):
            row, column = divmod(number, columns)
            self.create_image(column * step, row * step, image=image, anchor="nw")

    def _take(self, images: list[Image.Image]) -> None:
        if self.winfo_exists():
            self.images = images
            self.redraw()


def read_images() -> list[Image.Image]:
    """Some images of the demo, evenly spread. Call it in a thread."""
    from PIL import Image

    paths = sorted(FOLDER.glob("*.png"))
    images = []
    for path in paths[:: max(1, len(paths) // NUM_IMAGES)][:NUM_IMAGES]:
        with Image.open(path, formats=("PNG",)) as image:
            images.append(image.convert("RGB"))
    return images
