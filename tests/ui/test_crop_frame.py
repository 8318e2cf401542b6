"""The rectangle of a crop, and how what is cropped is trained."""

import itertools
import random

import pytest

from modules.config.ConceptConfig import ConceptConfig
from modules.config.DataConfig import DataConfig
from modules.data.ImageSettings import Crop
from modules.ui.models.CropFrame import INSIDE, CropFrame
from modules.ui.models.training_fit import fit_of, training_shapes


def test_edges_and_corners_follow_the_pointer_and_the_opposite_ones_stay():
    frame = CropFrame((400, 300), Crop(100, 50, 200, 100))
    assert [frame.handle_at(*at, 5) for at in ((100, 100), (299, 149), (200, 52), (200, 100), (20, 20))] == [
        "w", "se", "n", INSIDE, "",
    ]  # fmt: skip
    frame.drag("w", 60, 0)
    assert frame.crop == (60, 50, 240, 100)
    frame.drag("se", 900, 900)
    assert frame.crop == (60, 50, 340, 250)
    frame.move_by(-500, 10)
    assert frame.crop == (0, 50, 340, 250)
    frame.grow_by(-10, -20)
    assert frame.crop == (0, 50, 330, 230)
    frame.draw((50, 40), (10, 20))
    assert frame.crop == (10, 20, 40, 20)


def test_a_kept_aspect_ratio_holds_whatever_is_done_and_the_crop_stays_inside():
    draw = random.Random(3)
    for whole, aspect in itertools.product(((400, 300), (90, 700), (33, 20)), (1.0, 1.5, 0.4)):
        frame = CropFrame(whole)
        frame.choose_aspect(aspect)
        for _ in range(60):
            place = draw.randint(-50, 800), draw.randint(-50, 800)
            kind = draw.randrange(4)
            if kind == 0:
                frame.drag(draw.choice(["n", "s", "e", "w", "ne", "nw", "se", "sw"]), *place)
            elif kind == 1:
                frame.draw(place, (draw.randint(0, 400), draw.randint(0, 400)))
            elif kind == 2:
                frame.grow_by(draw.randint(-20, 20), 0)
            else:
                frame.move_by(*place)
            crop = frame.crop
            assert crop.x >= 0
            assert crop.y >= 0
            assert crop.fits(whole)
            assert abs(crop.width - crop.height * aspect) <= 1 + aspect


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ((2000, 1500), "trained at 576 x 448, scaled to 30%, 3.5% cropped"),
        ((512, 512), "trained at 512 x 512, scaled to 100%"),
        ((256, 256), "trained at 512 x 512, upscaled to 200%"),
    ],
)
def test_how_an_image_is_trained_is_told_as_training_does_it(part, text):
    data = DataConfig(resolution=512, bucket_step=64)
    fit = fit_of(part, ConceptConfig(), data)
    assert fit.describe().replace("\N{NO-BREAK SPACE}", " ") == text
    assert fit.size in training_shapes(ConceptConfig(), data)
