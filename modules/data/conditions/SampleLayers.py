"""The layers that a model makes of an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw

from modules.data.SampleParts import SampleParts

CHECK = 16  # pixels of a square of the checkerboard
LIGHT, DARK = (255, 255, 255), (214, 214, 214)
GAP = 8


@dataclass(frozen=True)
class SampleLayers(SampleParts):
    """images: transparent, of one size, from the bottom to the top."""

    def composed(self) -> Image.Image:
        """All of them on top of each other."""
        return composed([layer.convert("RGBA") for layer in self.images])

    def side_by_side(self) -> Image.Image:
        """The composed image, then each layer, on a checkerboard that shows through where they are transparent."""
        shown = [self.composed(), *self.images]
        width, height = self.images[0].size
        strip = Image.new("RGB", (len(shown) * (width + GAP) - GAP, height), LIGHT)
        for number, image in enumerate(shown):
            board = _checkerboard(width, height)
            board.alpha_composite(image.convert("RGBA"))
            strip.paste(board.convert("RGB"), (number * (width + GAP), 0))
        return strip


def composed(layers: Sequence[Image.Image]) -> Image.Image:
    """All layers on top of each other, as RGBA. layers: RGBA of one size, from the bottom to the top."""
    whole = layers[0]
    for layer in layers[1:]:
        whole = Image.alpha_composite(whole, layer)
    return whole


def _checkerboard(width: int, height: int) -> Image.Image:
    board = Image.new("RGBA", (width, height), LIGHT)
    draw = ImageDraw.Draw(board)
    for top in range(0, height, CHECK):
        for left in range((top // CHECK) % 2 * CHECK, width, 2 * CHECK):
            draw.rectangle((left, top, left + CHECK - 1, top + CHECK - 1), fill=DARK)
    return board
