"""Segment Anything 2 (SAM 2), of which single images are asked: an image is stretched to its square."""

from __future__ import annotations

from modules.annotators.clicking import ClickMasker


class _Sam2(ClickMasker):
    def size_in_square(self, width: int, height: int, side: int) -> tuple[int, int]:
        return side, side


MASKER = _Sam2
