"""Images that look alike side by side, with what is compared of them; one is chosen to be kept."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from modules.ui.models.DatasetView import DatasetItem, Trait
from modules.ui.models.duplicate_groups import facts_of, why
from modules.ui.widgets.PictureCanvas import PictureCanvas

if TYPE_CHECKING:
    from modules.ui.theme import Pair

MIN_WIDTH, MIN_PICTURE = 170, 110  # of a cell and of the image in it, in unscaled pixels
SCROLLED_PICTURE = 200  # the same, where not all are in sight
LOW = 380  # unscaled pixels of the height, below which the images get the room of the captions
PAD, LINE = 8, 18
NUM_LINES, NUM_LOW_LINES = 8, 5  # of text below an image: name, two of facts, why in up to two, three of the caption
CAPTION_LINES = 2.6  # that are filled, as lines end between words


class GroupCanvas(PictureCanvas):
    """As many beside each other as fit; more of them scroll. `chosen`: the one to keep.

    Left and Right, Home and End, and a click choose another.
    """

    members: Sequence[DatasetItem] = ()

    def show(self, members: Sequence[DatasetItem], chosen: int | None) -> None:
        """Show a group, the best image first, or the same one anew."""
        if [one.path for one in members] != [one.path for one in self.members]:
            self._offset = [0, 0]
        self.members = members
        self.chosen = chosen
        self.show_count(len(members))

    def empty_text(self) -> str:
        return "This image looks like no other one. Page Down shows the next group."

    def num_columns(self) -> int:
        """All beside each other if they fit; of more than two as many as show the images largest."""
        most = max(1, min(max(1, self.count), self.shown_size[0] // self.app.theme.scaled(MIN_WIDTH)))
        return most if self.count <= 2 else max(range(most, 0, -1), key=self._picture_width)

    def cell_size(self) -> tuple[int, int]:
        return self._cell_size(self.num_columns())

    def _cell_size(self, num_columns: int) -> tuple[int, int]:
        rows = -(-max(1, self.count) // num_columns)
        (width, shown), below = self.shown_size, self._text_height + 2 * self.app.theme.scaled(PAD)
        least, height = self.app.theme.scaled(MIN_PICTURE) + below, shown // rows
        if height < least:  # they scroll: then each is as large as can be seen at once
            height = max(least, min(shown, self.app.theme.scaled(SCROLLED_PICTURE) + below))
        return max(1, width // num_columns), height

    def _picture_width(self, num_columns: int) -> int:
        """How wide the best image is, with so many columns, all of which have to be in sight; else 0."""
        width, height = self._cell_size(num_columns)
        best, margin = self.members[0], 2 * self.app.theme.scaled(PAD)
        if height * -(-self.count // num_columns) > self.shown_size[1]:
            return 0
        return min(width - margin, (height - self._text_height - margin) * best.width // max(1, best.height))

    @property
    def _is_low(self) -> bool:
        return self.shown_size[1] < self.app.theme.scaled(LOW)

    @property
    def _text_height(self) -> int:
        return round((NUM_LOW_LINES if self._is_low else NUM_LINES) * self.app.theme.scaled(LINE))

    def draw_cell(self, number: int, x: int, y: int) -> None:
        theme, scaled, item = self.app.theme, self.app.theme.scaled, self.members[number]
        width, height = self.cell_size()
        pad, line = scaled(PAD), scaled(LINE)
        room, left, top = width - 2 * pad, x + pad, y + pad
        picture = max(1, height - self._text_height - 2 * pad)
        self.draw_picture(item.path, left, top, room, picture, crop=item.shown_part)
        self._draw_mark(number, left, top)
        top += picture + scaled(4)
        self.draw_text(left, top, os.path.basename(item.path), room, 12, weight="bold")
        for text in facts_of(item):
            top += line
            self.draw_text(left, top, text, room, 12)
        color = theme.warning if number else theme.success
        top = self.draw_lines(left, top + line, why(self.members, number), room, 12, color)
        if not self._is_low:
            caption = " | ".join(item.captions or ()) or "no caption"
            cut = self.texts.cut(caption, round(CAPTION_LINES * room), theme.plain_font(12))
            self.draw_lines(left, top + scaled(2), cut, room, 12, theme.muted)
        self.draw_choice(number, x + 2, y + 2, width - 4, height - 4)

    def _draw_mark(self, number: int, left: int, top: int) -> None:
        """Say what becomes of an image, or what has."""
        theme, scaled, is_out = self.app.theme, self.app.theme.scaled, self.members[number].traits & Trait.LEFT_OUT
        colour: Pair = theme.success if number == self.chosen else theme.muted
        text = "keep" if number == self.chosen else "left out" if is_out else "leave out"
        font = theme.plain_font(11)
        measured = self.texts.font(font)
        box = left + scaled(3), top + scaled(3)
        width, height = measured.measure(text) + scaled(10), measured.metrics("linespace") + scaled(2)
        self.canvas.create_rectangle(
            *box, box[0] + width, box[1] + height, fill=theme.now(colour), outline=theme.now(theme.card)
        )
        ink = theme.now(theme.card)
        self.canvas.create_text(box[0] + scaled(5), box[1] + scaled(1), text=text, anchor="nw", fill=ink, font=font)
