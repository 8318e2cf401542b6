"""The grid of several rounds of samples."""

import numpy as np
import pytest
from PIL import Image

from modules.sampling.generation import ImageRequest, save_image
from modules.sampling.image_grid import GAP, MARGIN, image_grid, save_sample_grid

COLOURS = ("red", "green", "blue", "black")


def square(colour: str, side: int = 4) -> Image.Image:
    return Image.new("RGB", (side, side), colour)


def centres(grid: Image.Image, num_rows: int, num_columns: int, cell: int) -> list[list[tuple[int, ...]]]:
    """The color in the middle of each cell, counted from the lower right corner, which has no labels."""
    return [
        [
            grid.getpixel(
                (
                    grid.width - MARGIN - column * (cell + GAP) - cell // 2,
                    grid.height - MARGIN - row * (cell + GAP) - cell // 2,
                )
            )
            for column in reversed(range(num_columns))
        ]
        for row in reversed(range(num_rows))
    ]


def test_pictures_stand_in_their_row_and_column():
    red, green, blue, black = map(square, COLOURS)
    grid = image_grid([[red, green], [blue, black]], scale=3)
    assert centres(grid, 2, 2, 12) == [[(255, 0, 0), (0, 128, 0)], [(0, 0, 255), (0, 0, 0)]]


def test_each_pixel_becomes_a_square():
    pixels = np.array([[0, 255], [255, 0]], np.uint8)
    grid = np.asarray(image_grid([[Image.fromarray(pixels)]], scale=5).convert("L"))
    inner = grid[MARGIN:-MARGIN, MARGIN:-MARGIN]
    assert (inner == np.kron(pixels, np.ones((5, 5)))).all()


def test_a_grid_without_pictures_or_with_too_few_names_is_refused():
    with pytest.raises(ValueError, match="needs at least one image"):
        image_grid([[]])
    with pytest.raises(ValueError, match="names"):
        image_grid([[square("red"), square("blue")]], column_names=["one"])
    with pytest.raises(ValueError, match="names"):
        image_grid([[square("red")]], row_names=["before", "after"])


def test_rounds_of_samples_stand_below_each_other_with_a_column_for_each_prompt(tmp_path):
    prompts = ["a handwritten one", "a handwritten two"]
    colours = {"before": ("red", "green"), "after": ("blue", "black")}
    for name, of_round in colours.items():
        for number, (prompt, colour) in enumerate(zip(prompts, of_round, strict=True)):
            for seed in (0, 1):
                request = ImageRequest(prompt, "", seed, 32, 32, steps=1, guidance=1.0)
                save_image(tmp_path / name / f"{2 * number + seed:03d}.png", square(colour, 32), request)
    path = save_sample_grid({name: tmp_path / name for name in colours}, tmp_path / "grid.png")  # enlarged three times
    rows = centres(Image.open(path), num_rows=4, num_columns=2, cell=96)
    assert rows[0] == rows[1] == [(255, 0, 0), (0, 128, 0)]
    assert rows[2] == rows[3] == [(0, 0, 255), (0, 0, 0)]
