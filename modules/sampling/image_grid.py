"""Arranges images in a labelled grid, using only Pillow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from modules.config.atomic_file import new_file
from modules.config.prompt_words import without_common_start

PAPER, LINE, INK = (255, 255, 255), (214, 214, 214), (40, 40, 40)
GAP = 6  # pixels between images
MARGIN = 10  # pixels around the grid
FONT_SIZE = 15
MIN_SIDE = 90  # of a sample in the grid, so that one sees it in a page


def save_sample_grid(rounds: Mapping[str, Path], path: Path) -> Path:
    """Writes a PNG with one column per prompt and the rounds of samples below each other; returns its path.

    rounds: name of a round -> its folder, with files written by `save_image`. All rounds have the same prompts.
    """
    rows: list[list[Image.Image]] = []
    row_names: list[str] = []
    for name, folder in rounds.items():
        by_prompt = _by_prompt(folder)
        of_round = list(map(list, zip(*by_prompt.values(), strict=True)))
        rows += of_round
        row_names += [name] * len(of_round)
    scale = math.ceil(MIN_SIDE / max(max(image.size) for row in rows for image in row))
    with new_file(path) as temporary:
        image_grid(rows, without_common_start(list(by_prompt)), row_names, scale).save(temporary, format="PNG")
    return path


def image_grid(
    rows: Sequence[Sequence[Image.Image]],
    column_names: Sequence[str] = (),
    row_names: Sequence[str] = (),
    scale: int = 2,
) -> Image.Image:
    """One RGB image of `rows`, with names above the columns and to the left of the rows.

    rows: images; rows may have different lengths, and all cells have the size of the largest image.
    row_names: one per row; consecutive equal names are written once, and a line separates the groups.
    scale: integer magnification, nearest neighbor.
    Raises ValueError if there is no image, or if the number of names does not match.
    """
    images = [image for row in rows for image in row]
    num_columns = max((len(row) for row in rows), default=0)
    if not images:
        raise ValueError("a grid needs at least one image")
    if len(row_names) not in (0, len(rows)) or len(column_names) not in (0, num_columns):
        raise ValueError(f"{len(row_names)} and {len(column_names)} names for {len(rows)} rows of {num_columns}")
    font = ImageFont.load_default(FONT_SIZE)
    cell_w = max([image.width * scale for image in images] + [_width(font, name) for name in column_names])
    cell_h = max(image.height for image in images) * scale
    left = MARGIN + max((_width(font, name) + MARGIN for name in row_names), default=0)
    top = MARGIN + (_height(font) + GAP if column_names else 0)
    size = left + num_columns * (cell_w + GAP) - GAP + MARGIN, top + len(rows) * (cell_h + GAP) - GAP + MARGIN
    grid = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(grid)
    for column, name in enumerate(column_names):
        draw.text((left + column * (cell_w + GAP) + cell_w // 2, MARGIN), name, INK, font, anchor="ma")
    for number, row in enumerate(rows):
        y = top + number * (cell_h + GAP)
        if row_names and (number == 0 or row_names[number] != row_names[number - 1]):
            draw.text((MARGIN, y + cell_h // 2), row_names[number], INK, font, anchor="lm")
            if number:
                draw.line((MARGIN, y - GAP // 2, grid.width - MARGIN, y - GAP // 2), LINE)
        for column, image in enumerate(row):
            large = image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
            grid.paste(large.convert("RGB"), (left + column * (cell_w + GAP) + (cell_w - large.width) // 2, y))
    return grid


def _by_prompt(folder: Path) -> dict[str, list[Image.Image]]:
    """The images of a round by prompt, in the order in which they were generated."""
    images: dict[str, list[Image.Image]] = {}
    for path in sorted(folder.glob("*.png")):
        with Image.open(path, formats=("PNG",)) as image:
            image.load()
        images.setdefault(image.text["prompt"], []).append(image)
    return images


def _width(font: ImageFont.ImageFont | ImageFont.FreeTypeFont, text: str) -> int:
    return round(font.getlength(text))


def _height(font: ImageFont.ImageFont | ImageFont.FreeTypeFont) -> int:
    _, top, _, bottom = font.getbbox("Ay")
    return round(bottom - top)
