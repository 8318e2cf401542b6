"""What is seen of an image and the mask on it while it is painted: zoom, place and colors. No Tk.

Screen coordinates are pixels of the frame, mask coordinates those of the upright image.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from modules.curation.MaskPainting import Box, MaskPainting
from modules.ui.models.mask_overlay import ALPHAS, COLOR, PROPOSED

MAX_PICTURE = 4096  # pixels of the longer side of what is shown: memory is bounded, and a screen shows no more at once
MAX_ZOOM = 32.0  # screen pixels for one of the mask
MARGIN = 3  # screen pixels around what has changed that resampling may touch


class MaskView:
    """picture: the upright image in RGB, perhaps reduced by `reduced`.

    color, background: RGB of the overlay and of what is beside the image. proposal: uint8[H, W] in the size of the
    mask, drawn over it; None for none.
    """

    def __init__(self, picture: Image.Image, painting: MaskPainting):
        self.painting = painting
        self.picture = picture
        self.color, self.background = COLOR, (0, 0, 0)
        self.proposal: np.ndarray | None = None
        self.zoom = 1.0  # screen pixels for one of the mask
        self.left = self.top = 0.0  # of the frame, in mask coordinates
        self._smaller = [picture]  # each half as large as the one before it
        while min(self._smaller[-1].size) > 256:
            self._smaller.append(self._smaller[-1].reduce(2))
        self._size = (1, 1)
        self._is_fitted = True
        self._base = self.frame = Image.new("RGB", self._size)

    # --- place -------------------------------------------------------------------------------------------------------

    @property
    def fit_zoom(self) -> float:
        """The zoom at which the whole image is seen."""
        width, height = self.painting.size
        return min(self._size[0] / width, self._size[1] / height)

    def resize(self, width: int, height: int) -> None:
        """Take another size of the frame."""
        self._size = max(1, width), max(1, height)
        if self._is_fitted:
            self.fit()
        else:
            self._place(self.left, self.top)

    def fit(self) -> None:
        """Show the whole image."""
        self._is_fitted, self.zoom = True, self.fit_zoom
        self._place(0, 0)

    def zoom_by(self, factor: float, x: float, y: float) -> None:
        """Enlarge by a factor; what is at a place of the screen stays there."""
        mask_x, mask_y = self.to_mask(x, y)
        self.zoom = min(max(self.zoom * factor, self.fit_zoom), max(MAX_ZOOM, self.fit_zoom))
        self._is_fitted = self.zoom == self.fit_zoom
        self._place(mask_x - x / self.zoom, mask_y - y / self.zoom)

    def move_by(self, x: float, y: float) -> None:
        """Move the image by so many screen pixels."""
        self._place(self.left - x / self.zoom, self.top - y / self.zoom)

    def to_mask(self, x: float, y: float) -> tuple[float, float]:
        return self.left + x / self.zoom, self.top + y / self.zoom

    def to_screen(self, x: float, y: float) -> tuple[float, float]:
        return (x - self.left) * self.zoom, (y - self.top) * self.zoom

    def _place(self, left: float, top: float) -> None:
        """Move the frame to a place of the mask, or as near as it shows nothing beside it that it need not."""
        self.left, self.top = (
            (side - seen / self.zoom) / 2 if side * self.zoom <= seen else min(max(0.0, place), side - seen / self.zoom)
            for side, seen, place in zip(self.painting.size, self._size, (left, top), strict=True)
        )
        self._draw_base()

    # --- pixels ------------------------------------------------------------------------------------------------------

    def _draw_base(self) -> None:
        """Draw the image without the mask, and then the mask on it."""
        self._base = Image.new("RGB", self._size, self.background)
        box = self._screen_box(self.painting.whole)
        self._base.paste(self._picture_part(box), box[:2])
        self.frame = self._base.copy()
        self.update(self.painting.whole)

    def update(self, changed: Box) -> Box:
        """Draw the mask anew where it has changed, in mask coordinates. Returns that part of the frame."""
        left, top, right, bottom = self._screen_box(changed, MARGIN)
        if left >= right or top >= bottom:
            return (0, 0, 0, 0)
        box = left, top, right, bottom
        part = self._base.crop(box)
        part.paste(self.color, (0, 0, *part.size), self._mask_part(box, self.painting.values).point(ALPHAS))
        if self.proposal is not None:
            part.paste(PROPOSED, (0, 0, *part.size), self._mask_part(box, self.proposal).point(ALPHAS))
        self.frame.paste(part, (left, top))
        return left, top, right, bottom

    def _screen_box(self, box: Box, margin: int = 0) -> Box:
        """The pixels of the frame that a part of the mask is seen in."""
        left, top = self.to_screen(box[0], box[1])
        right, bottom = self.to_screen(box[2], box[3])
        whole = self._whole_on_screen()
        return (
            max(0, whole[0], int(left) - margin),
            max(0, whole[1], int(top) - margin),
            min(self._size[0], whole[2], int(right) + 1 + margin),
            min(self._size[1], whole[3], int(bottom) + 1 + margin),
        )

    def _whole_on_screen(self) -> Box:
        """The screen pixels that the whole image takes, most of which may lie outside of the frame."""
        left, top = self.to_screen(0, 0)
        right, bottom = self.to_screen(*self.painting.size)
        return round(left), round(top), round(right), round(bottom)

    def _drawn(self, box: Box) -> tuple[float, float, float, float]:
        """What of the mask is drawn in a part of the frame, in whole pixels of which the image begins and ends."""
        whole, (width, height) = self._whole_on_screen(), self.painting.size
        across, down = width / max(1, whole[2] - whole[0]), height / max(1, whole[3] - whole[1])
        return (
            max(0.0, (box[0] - whole[0]) * across),
            max(0.0, (box[1] - whole[1]) * down),
            min(float(width), (box[2] - whole[0]) * across),
            min(float(height), (box[3] - whole[1]) * down),
        )

    def _picture_part(self, box: Box) -> Image.Image:
        """The image as it is seen in a part of the frame."""
        scale = self.picture.width / self.painting.size[0]
        level = 0
        while level + 1 < len(self._smaller) and self.zoom / scale * 2 ** (level + 1) <= 1:
            level += 1
        picture = self._smaller[level]
        factors = picture.width / self.painting.size[0], picture.height / self.painting.size[1]
        return self._seen(picture, box, factors)

    def _mask_part(self, box: Box, mask: np.ndarray) -> Image.Image:
        """A mask as it is seen in a part of the frame; only that part of it is read."""
        left, top, right, bottom = self._drawn(box)
        step = max(1, int(1 / self.zoom / 2))  # two pixels of the mask for one of the screen are enough for the eye
        # one more for resampling, and whole steps, so that each part is reduced alike
        first = (int(left) // step - 1) * step, (int(top) // step - 1) * step
        inside = self.painting.inside((*first, int(right) + 1 + step, int(bottom) + 1 + step))
        values = np.ascontiguousarray(mask[inside[1] : inside[3], inside[0] : inside[2]])
        reduced = Image.fromarray(values).reduce(step) if step > 1 else Image.fromarray(values)
        return self._seen(reduced, box, (1 / step, 1 / step), inside[:2])

    def _seen(
        self, image: Image.Image, box: Box, factors: tuple[float, float], corner: tuple[int, int] = (0, 0)
    ) -> Image.Image:
        """What of an image is seen in a part of the frame.

        factors: its pixels for one of the mask. corner: of the mask, where its upper left corner is.
        """
        size = max(1, box[2] - box[0]), max(1, box[3] - box[1])
        ends = self._drawn(box)
        source = [(end - corner[number % 2]) * factors[number % 2] for number, end in enumerate(ends)]
        limits = [limit * 1.0 for limit in (*image.size, *image.size)]
        clipped = [min(max(0.0, one), limit) for one, limit in zip(source, limits, strict=True)]
        enlarged = size[0] > 2 * (clipped[2] - clipped[0])
        how = Image.Resampling.NEAREST if enlarged else Image.Resampling.BILINEAR
        return image.resize(size, how, box=(clipped[0], clipped[1], clipped[2], clipped[3]))


def reduced(picture: Image.Image) -> Image.Image:
    """An image that is no larger than needs be for `MaskView`."""
    factor = MAX_PICTURE / max(picture.size)
    if factor >= 1:
        return picture
    size = max(1, round(picture.width * factor)), max(1, round(picture.height * factor))
    return picture.resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0)
