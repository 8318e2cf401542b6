"""Folders of captioned pictures, and of the layers of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

Sizes = Sequence[tuple[int, int]]
PICTURE_SIZES: Sizes = ((32, 32), (32, 32), (48, 32), (32, 48))


def write_pictures(folder: Path, sizes: Sizes = PICTURE_SIZES, captions: Sequence[str] | None = None) -> Path:
    """Writes one PNG per (width, height), `000.png`, `001.png` ..., into a new folder and returns the folder.

    captions: one per picture, None for a default one, or "" to write no caption file at all.
    """
    folder.mkdir(parents=True)
    for index, size in enumerate(sizes):
        draw_picture(index, size).save(folder / f"{index:03d}.png")
        caption = f"a photo of a cat, number {index}" if captions is None else captions[index]
        if caption:
            (folder / f"{index:03d}.txt").write_text(caption, encoding="utf-8")
    return folder


def captions_in(folder: Path) -> list[str]:
    """What the caption files of a folder say, in the order of their names.

    A program may be undoing them meanwhile: a file that goes between listing and reading is no caption.
    """
    texts = []
    for path in sorted(folder.glob("*.txt")):
        with suppress(FileNotFoundError):
            texts.append(path.read_text(encoding="utf-8").strip())
    return [text for text in texts if text]


def write_layers(folder: Path, pictures: Path, counts: Sequence[int] = (2,)) -> Path:
    """Writes the layers of each picture in `pictures` into a new folder and returns it.

    counts: the numbers of layers of the pictures, repeated; the lowest one is opaque.
    """
    from PIL import Image

    folder.mkdir(parents=True)
    for index, picture in enumerate(sorted(Path(pictures).glob("*.png"))):
        with Image.open(picture) as whole:
            width, height = whole.size
        for number in range(counts[index % len(counts)]):
            layer = draw_picture(index + 10 * number, (width, height)).convert("RGBA")
            if number:
                layer.putalpha(Image.linear_gradient("L").resize((width, height)))
            layer.save(folder / f"{picture.stem}_{number}.png")
    return folder


def draw_picture(index: int, size: tuple[int, int]) -> Image.Image:
    """A slope in red and green with a blue of its own: no two pictures, and no two corners of one, are alike."""
    import numpy as np
    from PIL import Image

    width, height = size
    pixels_HWC = np.zeros((height, width, 3), dtype=np.uint8)
    pixels_HWC[..., 0] = np.linspace(0, 255, width, dtype=np.uint8)
    pixels_HWC[..., 1] = np.linspace(0, 255, height, dtype=np.uint8)[:, None]
    pixels_HWC[..., 2] = (index * 53) % 256
    return Image.fromarray(pixels_HWC)


def write_negatives(folder: Path, pictures: Path) -> Path:
    """The negative of each picture, by the same name, in a new folder, which is returned."""
    from PIL import Image, ImageOps

    folder.mkdir()
    for path in pictures.glob("*.png"):
        with Image.open(path) as picture:
            ImageOps.invert(picture.convert("RGB")).save(folder / path.name)
    return folder
