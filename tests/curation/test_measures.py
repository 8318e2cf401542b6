"""Blur and noise are measured as people see them: in every size and contrast of a photograph alike."""

import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter

from modules.curation.measures import BLURRED, NOISY, SIDE, ImageMeasures, measure

PHOTOGRAPH = Path(__file__).parents[2] / "scripts" / "pictures" / "chelsea.jpg"


@pytest.fixture(scope="module")
def photograph() -> Image.Image:
    """As large as the images that are measured."""
    with Image.open(PHOTOGRAPH) as image:
        scale = SIDE / math.sqrt(image.width * image.height)
        return image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)


def measured(image: Image.Image, folder: Path) -> ImageMeasures:
    image.save(folder / "image.png")
    return measure(str(folder / "image.png"))


def test_a_photograph_is_as_sharp_in_each_size_and_contrast(photograph, tmp_path):
    plain = measured(photograph, tmp_path)
    assert not plain.is_blurred
    assert not plain.is_noisy
    half = photograph.resize((photograph.width // 2, photograph.height // 2), Image.Resampling.LANCZOS)
    double = photograph.resize((photograph.width * 2, photograph.height * 2), Image.Resampling.BICUBIC)
    for changed in (half, double, ImageEnhance.Contrast(photograph).enhance(0.3)):
        assert measured(changed, tmp_path).sharpness == pytest.approx(plain.sharpness, abs=0.06)


@pytest.mark.parametrize("direction", ["both", "x", "y"])
def test_a_blurred_photograph_is_found_also_if_the_camera_has_moved(direction, photograph, tmp_path):
    radius = {"both": (3, 3), "x": (6, 0), "y": (0, 6)}[direction]
    blurred = measured(photograph.filter(ImageFilter.BoxBlur(radius)), tmp_path)
    assert blurred.is_blurred
    assert blurred.sharpness < BLURRED - 0.05


def test_an_enlarged_photograph_counts_as_blurred(photograph, tmp_path):
    small = photograph.resize((photograph.width // 4, photograph.height // 4), Image.Resampling.LANCZOS)
    assert measured(small.resize(photograph.size, Image.Resampling.BICUBIC), tmp_path).is_blurred


def test_a_sharp_subject_before_a_blurred_background_is_sharp(photograph, tmp_path):
    width, height = photograph.size
    box = (width // 3, height // 3, width * 2 // 3, height * 2 // 3)
    image = photograph.filter(ImageFilter.GaussianBlur(8))
    assert measured(image, tmp_path).is_blurred
    image.paste(photograph.crop(box), box)
    assert not measured(image, tmp_path).is_blurred


@pytest.mark.parametrize("deviation", [4.0, 16.0])
def test_the_noise_is_the_deviation_of_the_grain(deviation, photograph, tmp_path):
    grain = np.random.default_rng(0).normal(0, deviation, (photograph.height, photograph.width, 1))
    pixels = (np.asarray(photograph) + grain).clip(0, 255).astype(np.uint8)
    noise = measured(Image.fromarray(pixels), tmp_path).noise
    assert noise == pytest.approx(deviation, rel=0.2)
    assert (noise > NOISY) == (deviation > NOISY)


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (2, 2), (40, 3), (900, 600)])
def test_an_image_without_detail_has_neither_sharpness_nor_noise(size, tmp_path):
    found = measured(Image.new("RGB", size, (90, 80, 70)), tmp_path)
    assert (found.sharpness, found.noise, found.orientation) == (0, 0, 1)


def test_the_tag_that_turns_an_image_is_read_and_the_image_measured_upright(photograph, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    photograph.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    turned = measure(str(tmp_path / "turned.png"))
    assert turned.orientation == 6
    assert turned.bits == measured(photograph, tmp_path).bits


def test_what_is_kept_of_the_measures_gives_them_again(photograph, tmp_path):
    found = measured(photograph, tmp_path)
    again = ImageMeasures.of_values(found.to_values())
    assert again.to_values() == found.to_values()
    for damaged in ([], found.to_values()[:4], [*found.to_values()[:4], "x"], [None] * 5):
        with pytest.raises((ValueError, TypeError)):
            ImageMeasures.of_values(damaged)
