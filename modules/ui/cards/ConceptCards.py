"""The concepts as cards with images, counts and their share of an epoch."""

from __future__ import annotations

import os
import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from modules.config.counted import counted
from modules.config.labels import with_labels
from modules.ui.widgets.PictureCanvas import PictureCanvas

if TYPE_CHECKING:
    import customtkinter as ctk
    from PIL import Image

    from modules.config.ConceptConfig import ConceptConfig
    from modules.ui.App import App
    from modules.ui.models.concept_preview import ConceptPictures
    from modules.ui.models.decoding import PictureKey
    from modules.ui.widgets.Page import Page

CARD_WIDTH = 400  # unscaled pixels; cards grow to fill the width
HEAD_HEIGHT, SIDE, BAR_HEIGHT = 42, 80, 6  # of title and path, of an image, of the bar with the share
GAP, PAD, BOX = 8, 12, 18
EMPTY_HEIGHT = 110
MAX_SHARE = 0.5  # of the height of the tab; if the cards need more, they scroll
NUM_PICTURES = 4
NUM_TRIED = 16  # images, of which the first that can be decoded are shown
TEXT_SIZES = (12, 11)  # of the fonts of the counts and of the balance


@dataclass(frozen=True)
class ConceptCard:
    """The content of a card. found: None while the folder is read. samples: per epoch; None while other folders are
    read, on which this may depend. share: of an epoch's samples."""

    concept: ConceptConfig
    found: ConceptPictures | None
    samples: float | None = None
    share: float = 0.0

    @property
    def title(self) -> str:
        return self.concept.name or os.path.basename(os.path.normpath(self.concept.path)) or "no folder yet"

    @property
    def counts(self) -> str:
        """The content of the folder, in words."""
        return "Reading the images…" if self.found is None else self.found.counts

    @property
    def balance(self) -> str:
        """Its contribution to an epoch, in words."""
        if not self.concept.enabled:
            return "not trained"
        if self.concept.validation:
            return "for validation only"
        if self.samples is None:
            return "counting the samples per epoch…"
        role = ", regularization" if self.concept.regularisation else ""
        return f"{counted(round(self.samples), 'sample')} an epoch, {self.share:.0%}{role}"


class ConceptCards(PictureCanvas):
    """The cards of all concepts, of which only visible ones are drawn. Cells have the numbers of the concepts.

    It is as high as all cards, but no higher than MAX_SHARE of its parent, so that what is below stays in sight: then
    the cards scroll. If there is nothing to scroll, the wheel scrolls `page`, which is below.

    filter_text: words that the title or the folder of each shown concept contains. on_filter: called when choosing a
    concept that it hides has cleared it.

    Space or a click on the box enables or disables a concept, Delete removes it, Return or a double click opens it,
    Alt+Up and Alt+Down move it.
    """

    def __init__(
        self,
        parent: ctk.CTkFrame,
        app: App,
        page: Page,
        on_choose: Callable[[int], None],
        on_open: Callable[[int], None],
        on_toggle: Callable[[int], None],
        on_remove: Callable[[int], None],
        on_move: Callable[[int, int], None],
        on_filter: Callable[[], None],
    ):
        self.cards: list[ConceptCard] = []
        self.filter_text = ""
        self._numbers: list[int] = []  # of the concepts shown, by place
        self._places: dict[int, int] = {}  # the reverse
        self._on_toggle, self._on_remove, self._on_move, self._on_filter = on_toggle, on_remove, on_move, on_filter
        self._num_lines: tuple[tuple[int, int], tuple[int, ...]] | None = None  # and the width and scale they are for
        self._page = page
        self._damaged: set[str] = set()  # paths of images that could not be decoded: a truncated one has a sound header
        self._height = 0  # requested, in screen pixels
        super().__init__(parent, app, on_choose, on_open)
        self.canvas.bind("<Configure>", lambda event: self._fit_height(), add="+")
        parent.bind("<Configure>", lambda event: self._fit_height(), add="+")
        self.canvas.bind("<space>", lambda event: self._act(self._on_toggle))
        self.canvas.bind("<Delete>", lambda event: self._act(self._on_remove))
        for key, by in (("<Alt-Up>", -1), ("<Alt-Down>", 1)):
            self.canvas.bind(key, partial(self._move, by))

    def _move(self, by: int, event: tk.Event) -> object:
        return self._act(lambda number: self._on_move(number, by))

    def show(self, cards: Sequence[ConceptCard]) -> None:
        self.cards = list(cards)
        if self.chosen is not None and self.chosen >= len(cards):
            self.chosen = None
        self._num_lines = None
        self._apply_filter()

    def show_card(self, number: int, card: ConceptCard) -> None:
        """Replace one card, and draw only this one unless it makes all higher."""
        self.cards[number] = card
        self.redraw_cell(number)
        if self._num_lines is not None:
            depends_on, before = self._num_lines
            most = tuple(map(max, before, self._lines_of([card], depends_on[0])))
            if most != before:
                self._num_lines = depends_on, most
                self._fit_height()
                self.redraw()

    def forget_pictures(self) -> None:
        self._damaged.clear()
        super().forget_pictures()

    def set_filter(self, text: str) -> None:
        """Show only concepts with these words; one that is hidden by them is no longer chosen."""
        if text == self.filter_text:
            return
        self.filter_text = text
        if self.chosen is not None and not self._is_wanted(self.chosen):
            self.chosen = None
        self._apply_filter()

    def choose(self, number: int | None) -> None:
        if number is not None and number not in self._places and number < len(self.cards):
            self.set_filter("")
            self._on_filter()
        super().choose(number)

    @property
    def num_shown(self) -> int:
        return len(self._numbers)

    def number_at(self, place: int) -> int:
        return self._numbers[place]

    def place_of(self, number: int) -> int | None:
        return self._places.get(number)

    def _apply_filter(self) -> None:
        # The chosen one stays while its name is being changed.
        numbers = range(len(self.cards))
        self._numbers = [number for number in numbers if number == self.chosen or self._is_wanted(number)]
        self._places = {number: place for place, number in enumerate(self._numbers)}
        self.show_count(len(self._numbers))
        self._fit_height()

    def _is_wanted(self, number: int) -> bool:
        card = self.cards[number]
        text = f"{card.title} {card.concept.path}".casefold()
        return all(word in text for word in self.filter_text.casefold().split())

    def empty_text(self) -> str:
        if self.cards:
            return "No concept has this in its name or folder."
        return "No concepts yet. Add a folder of images to train on."

    def num_columns(self) -> int:
        return max(1, self.canvas.winfo_width() // self.app.theme.scaled(CARD_WIDTH))

    def cell_size(self) -> tuple[int, int]:
        scaled = self.app.theme.scaled
        width = max(1, self.canvas.winfo_width() // self.num_columns())
        fixed = scaled(HEAD_HEIGHT) + scaled(SIDE) + scaled(BAR_HEIGHT) + 2 * scaled(PAD) + scaled(GAP) + scaled(16)
        return width, fixed + self._height_of_texts(width - scaled(GAP) - 2 * scaled(PAD))

    def _height_of_texts(self, width: int) -> int:
        """The height of the longest counts and balance texts, wrapped to this width in the current font."""
        depends_on = width, self.app.theme.scaled(100)
        if self._num_lines is None or self._num_lines[0] != depends_on:
            self._num_lines = depends_on, self._lines_of(self.cards, width)
        fonts = [self.texts.font(self.app.theme.plain_font(size)) for size in TEXT_SIZES]
        return sum(lines * font.metrics("linespace") for lines, font in zip(self._num_lines[1], fonts, strict=True))

    def _lines_of(self, cards: Sequence[ConceptCard], width: int) -> tuple[int, ...]:
        """The most lines that the counts, and that the balance of any of these cards take."""
        most = []
        for size, texts in zip(
            TEXT_SIZES, zip(*((one.counts, one.balance) for one in cards), strict=True), strict=False
        ):
            font = self.texts.font(self.app.theme.plain_font(size))
            most.append(max(_num_lines(text, width, font.measure) for text in set(texts)))
        return tuple(most) or (1,) * len(TEXT_SIZES)

    def _fit_height(self) -> None:
        """Be as high as all cards if there is room."""
        rows = -(-self.count // self.num_columns())
        height = self.app.theme.scaled(EMPTY_HEIGHT)
        if rows:
            cell_height = self.cell_size()[1]
            height = min(rows * cell_height, max(cell_height, int(MAX_SHARE * self.master.winfo_height())))
        if height != self._height and self.canvas.winfo_width() > 1:
            self._height = height
            self.canvas.configure(height=height)

    def _on_wheel(self, event: tk.Event, notches: float) -> str:
        content, shown = self._content()
        if content[1] <= shown[1]:
            event.widget = self._page._parent_canvas
            self._page._mouse_wheel_all(event)
            return "break"
        return super()._on_wheel(event, notches)

    def _restyle(self) -> None:
        super()._restyle()
        self._num_lines = None
        self._fit_height()

    def draw_cell(self, number: int, x: int, y: int) -> None:
        card, theme, scaled = self.cards[number], self.app.theme, self.app.theme.scaled
        width, height = self.cell_size()
        left, top = x + scaled(GAP) // 2, y + scaled(GAP) // 2
        width, height = width - scaled(GAP), height - scaled(GAP)
        self.canvas.create_rectangle(
            left, top, left + width, top + height, fill=theme.now(theme.page), outline=theme.now(theme.line)
        )
        self.draw_choice(number, left, top, width, height)
        left, top, width = left + scaled(PAD), top + scaled(PAD), width - 2 * scaled(PAD)
        self._draw_box(card.concept.enabled, left, top)
        text_left = left + scaled(BOX + 10)
        text_width = width - scaled(BOX + 10)
        colour = theme.text if card.concept.enabled else theme.muted
        self.draw_text(text_left, top, card.title, text_width, 14, colour, "bold")
        self.draw_text(text_left, top + scaled(20), card.concept.path, text_width, 11, theme.muted)
        top += scaled(HEAD_HEIGHT)
        if card.found is not None and card.found.error:
            font, text = theme.plain_font(12), with_labels(card.found.error)[:240]
            self.canvas.create_text(
                left, top, text=text, anchor="nw", width=width, fill=theme.now(theme.error), font=font
            )
            return
        top = self._draw_pictures(card, left, top, width)
        top = self.draw_lines(left, top, card.counts, width, TEXT_SIZES[0], theme.text)
        top = self.draw_lines(left, top, card.balance, width, TEXT_SIZES[1], theme.muted)
        self._draw_bar(card, left, top + scaled(4), width)

    def _take(self, decoded: Sequence[tuple[PictureKey, Image.Image | str]]) -> None:
        self._damaged.update(key.path for key, picture in decoded if isinstance(picture, str))
        super()._take(decoded)

    def _draw_pictures(self, card: ConceptCard, left: int, top: int, width: int) -> int:
        """Draw the first images side by side, damaged ones only for want of others. Returns their lower edge."""
        side = self.app.theme.scaled(SIDE)
        room = width // NUM_PICTURES
        paths = sorted(card.found.paths[:NUM_TRIED] if card.found else (), key=self._damaged.__contains__)
        for place, path in enumerate(paths[:NUM_PICTURES]):
            self.draw_picture(path, left + place * room, top, min(side, room - 4), side)
        return top + side + self.app.theme.scaled(6)

    def _draw_box(self, is_on: bool, left: int, top: int) -> None:
        theme, side = self.app.theme, self.app.theme.scaled(BOX)
        fill, outline = (theme.selected, theme.selected) if is_on else (theme.field, theme.border)
        self.canvas.create_rectangle(
            left, top, left + side, top + side, fill=theme.now(fill), outline=theme.now(outline), width=2
        )
        if is_on:
            tick = [left + side * 0.22, top + side * 0.52, left + side * 0.42, top + side * 0.74]
            tick += [left + side * 0.8, top + side * 0.28]
            self.canvas.create_line(*tick, fill=theme.now(theme.on_accent), width=max(2, theme.scaled(2)))

    def _draw_bar(self, card: ConceptCard, left: int, top: int, width: int) -> None:
        theme, height = self.app.theme, self.app.theme.scaled(BAR_HEIGHT)
        self.canvas.create_rectangle(left, top, left + width, top + height, fill=theme.now(theme.line), width=0)
        filled = round(width * min(1.0, card.share))
        if filled and card.concept.enabled:
            self.canvas.create_rectangle(
                left, top, left + filled, top + height, fill=theme.now(theme.selected), width=0
            )

    def _on_click(self, event: tk.Event) -> None:
        super()._on_click(event)
        number = self.cell_at(event.x, event.y)
        if number is None:
            return
        x, y = self.corner_of(number)
        edge = self.app.theme.scaled(GAP) // 2 + self.app.theme.scaled(PAD + BOX + 4)
        if event.x - x <= edge and event.y - y <= edge:
            self._on_toggle(number)

    def _act(self, action: Callable[[int], None]) -> str:
        if self.chosen is not None:
            action(self.chosen)
        return "break"


def _num_lines(text: str, width: int, measure: Callable[[str], int]) -> int:
    """The number of lines that a Canvas wraps a text into."""
    count, line = 1, ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if line and measure(longer) > width:
            count, longer = count + 1, word
        line = longer
    return count + max(0, measure(line) - 1) // max(1, width)  # words longer than a line are broken
