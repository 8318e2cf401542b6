"""How wide texts are in the fonts of a canvas, and how much of a line fits into a width."""

from __future__ import annotations

import tkinter as tk
from tkinter import font as tkfont

from modules.ui.widgets.fitting import cut_middle, cut_text

MAX_LETTERS = 300  # of a line: more never fits


class TextWidths:
    """Remembers fonts and the widths of their letters: asking Tk for them at each cell would take milliseconds."""

    def __init__(self, widget: tk.Misc):
        self._widget = widget
        self._fonts: dict[tuple, tkfont.Font] = {}
        self._letters: dict[tuple, dict[str, int]] = {}  # the width of each letter in pixels, by font

    def font(self, font: tuple) -> tkfont.Font:
        """A font for measuring text. font: from Theme.plain_font."""
        if font not in self._fonts:
            self._fonts[font] = measuring_font(self._widget, font)
        return self._fonts[font]

    def cut(self, text: str, width: int, font: tuple, is_name: bool = False) -> str:
        """As much of `text`, in one line, as fits into `width` pixels, by the widths of single letters.

        is_name: whether its end tells it apart, and stays.
        """
        widths = self._letters.setdefault(font, {})

        def measure(part: str) -> int:
            for letter in part:
                if letter not in widths:
                    widths[letter] = self.font(font).measure(letter)
            return sum(map(widths.__getitem__, part))

        cut = cut_middle if is_name else cut_text
        return cut(" ".join(text[:MAX_LETTERS].split()), width, measure)

    def forget(self) -> None:
        """Measure anew, once the scale of the window has changed."""
        self._fonts.clear()
        self._letters.clear()


def measuring_font(parent: tk.Misc, font: tuple) -> tkfont.Font:
    """The font that Tk draws text with. font: from Theme.plain_font.

    `tkfont.Font(font=...)` would round its pixels to whole points, and measure a tenth too little at some sizes.
    """
    family, size, weight = font
    return tkfont.Font(parent, family=family, size=size, weight=weight)
