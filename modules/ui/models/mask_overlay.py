"""How a mask is shown over its image: in the grid, in the large view and while it is painted. No Tk."""

from __future__ import annotations

from PIL import Image

from modules.data.errors import ImageError
from modules.data.images import load_alpha, load_gray_on_black, may_be_transparent

COLOR = (255, 20, 150)  # that few photos have
STRENGTH = 0.55  # of the color over what is learned
PROPOSED = (0, 190, 255)  # of what a model proposes for a mask
ALPHAS = [round(value * STRENGTH) for value in range(256)]
"""Of the color, by the value of a mask."""


def with_mask(image: Image.Image, path: str, mask: str) -> Image.Image:
    """An image, in any size, with its mask over it: what is learned is colored.

    path: of the image. mask: the file of its mask; the same path stands for the transparency of the image, and "" for
    none. Raises ImageError if the mask can't be read.
    """
    if not mask or (mask == path and not may_be_transparent(path)):
        return image
    try:
        gray = load_alpha(path) if mask == path else load_gray_on_black(mask)
    except ImageError as error:
        raise ImageError(mask, f"its mask can't be read ({error.reason})") from error
    alpha = gray.resize(image.size, Image.Resampling.BILINEAR, reducing_gap=2.0).point(ALPHAS)
    shown = image.convert("RGB")
    shown.paste(COLOR, (0, 0, *shown.size), alpha)
    return shown
