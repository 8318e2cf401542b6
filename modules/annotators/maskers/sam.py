"""Segment Anything (SAM): the longer side of an image fills its square."""

from __future__ import annotations

from modules.annotators.clicking import ClickMasker


class _Sam(ClickMasker):
    def size_in_square(self, width: int, height: int, side: int) -> tuple[int, int]:
        scale = side / max(width, height)
        return max(1, int(width * scale + 0.5)), max(1, int(height * scale + 0.5))


MASKER = _Sam
