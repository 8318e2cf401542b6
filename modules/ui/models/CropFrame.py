"""The rectangle of a crop while a person moves and resizes it, in pixels of the upright image. No Tk."""

from __future__ import annotations

import math

from modules.data.ImageSettings import Crop

LEAST = 16  # pixels of a side, unless the image has fewer
INSIDE = "inside"


class CropFrame:
    """whole: width and height of the image. crop: the part. aspect: width / height that is kept; None for any.

    Whatever is done, the crop stays inside of the image.
    """

    def __init__(self, whole: tuple[int, int], crop: Crop | None = None):
        self.whole = whole
        self.aspect: float | None = None
        self.crop = crop if crop is not None and crop.fits(whole) else Crop(0, 0, *whole)

    @property
    def is_whole(self) -> bool:
        return self.crop == (0, 0, *self.whole)

    def reset(self) -> None:
        """Take the whole image; any aspect ratio is free then."""
        self.aspect, self.crop = None, Crop(0, 0, *self.whole)

    def choose_aspect(self, aspect: float | None) -> None:
        """Keep this aspect ratio from now on: the crop gets it around its middle, with about the same area."""
        self.aspect = aspect
        if aspect is None:
            return
        x, y, width, height = self.crop
        area = width * height
        self._take(x + width / 2, y + height / 2, math.sqrt(area * aspect), math.sqrt(area / aspect), (0, 0))

    def move_by(self, x: int, y: int) -> None:
        left = min(max(0, self.crop.x + x), self.whole[0] - self.crop.width)
        top = min(max(0, self.crop.y + y), self.whole[1] - self.crop.height)
        self.crop = self.crop._replace(x=left, y=top)

    def grow_by(self, x: int, y: int) -> None:
        """Move the right and the lower edge; with a kept aspect ratio, both."""
        width, height = float(self.crop.width + x), float(self.crop.height + y)
        if self.aspect is not None:
            width, height = (width, width / self.aspect) if x else (height * self.aspect, height)
        self._take(self.crop.x, self.crop.y, width, height, (1, 1))

    def draw(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Draw a new rectangle from one corner to the opposite one."""
        start = min(max(0.0, start[0]), self.whole[0]), min(max(0.0, start[1]), self.whole[1])
        across, down = end[0] - start[0], end[1] - start[1]
        width, height = abs(across), abs(down)
        if self.aspect is not None:
            width = max(width, height * self.aspect)
            height = width / self.aspect
        self._take(*start, width, height, (1 if across >= 0 else -1, 1 if down >= 0 else -1))

    def handle_at(self, x: float, y: float, reach: float) -> str:
        """What is held at a place: "n", "se" or another edge or corner, INSIDE, or "" beside the crop.

        reach: so near to an edge it is held.
        """
        left, top, width, height = self.crop
        right, bottom = left + width, top + height
        if not (left - reach <= x <= right + reach and top - reach <= y <= bottom + reach):
            return ""
        reach_x, reach_y = min(reach, width / 3), min(reach, height / 3)  # so that a small crop can be moved, too
        down = "n" if y < top + reach_y else "s" if y > bottom - reach_y else ""
        across = "w" if x < left + reach_x else "e" if x > right - reach_x else ""
        return down + across or INSIDE

    def drag(self, handle: str, x: float, y: float) -> None:
        """Bring an edge or a corner to a place; the opposite one stays."""
        left, top, width, height = self.crop
        right, bottom = left + width, top + height
        toward = (("e" in handle) - ("w" in handle), ("s" in handle) - ("n" in handle))
        fixed_x = right if "w" in handle else left if "e" in handle else left + width / 2
        fixed_y = bottom if "n" in handle else top if "s" in handle else top + height / 2
        wide = max(0.0, (x - fixed_x) * toward[0]) if toward[0] else width
        high = max(0.0, (y - fixed_y) * toward[1]) if toward[1] else height
        if self.aspect is not None:
            if not toward[0]:
                wide = high * self.aspect
            elif toward[1]:
                wide = max(wide, high * self.aspect)
            high = wide / self.aspect
        self._take(fixed_x, fixed_y, wide, high, toward)

    def _take(self, x: float, y: float, width: float, height: float, toward: tuple[int, int]) -> None:
        """Take a rectangle that begins at a place and goes from there to one side (1 or -1), or to both (0)."""
        least = [min(LEAST, side) for side in self.whole]
        # with a fixed edge, up to the border; around a middle, as large as the image
        room = [
            limit if not way else limit - at if way > 0 else at
            for limit, at, way in zip(self.whole, (x, y), toward, strict=True)
        ]
        if self.aspect is None:
            sides = [min(max(side, low), most) for side, low, most in zip((width, height), least, room, strict=True)]
        else:
            width = max(width, least[0], least[1] * self.aspect)
            width = min(width, room[0], room[1] * self.aspect)
            sides = [width, width / self.aspect]
        places = []
        for at, side, limit, way in zip((x, y), sides, self.whole, toward, strict=True):
            length = min(max(1, round(side)), limit)
            first = at if way > 0 else at - side if way < 0 else at - side / 2
            places.append((min(max(0, round(first)), limit - length), length))
        (left, wide), (top, high) = places
        self.crop = Crop(left, top, wide, high)
