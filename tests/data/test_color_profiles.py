"""Images come out in sRGB, whatever color profile is embedded, as a viewer shows them."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from modules.data.images import color_conversion, load_image, load_rgba
from modules.data.masks import load_mask
from tests.support.icc import SPACES, cmyk_profile, gray_profile, rgb_profile, srgb_profile, stored_as

PICTURES = Path(__file__).parent / "pictures"
RED = (200, 60, 40)
# of a printer whose inks are pure: Lab, as 8-bit values, for C, M, Y and K on (1) or off (0)
PAPER, BLACK, ORANGE = (255, 128, 128), (0, 128, 128), (160, 180, 190)
INKS = [BLACK if number % 2 else (ORANGE if number == 0b0110 else PAPER) for number in range(16)]


def saved(path, image, **options):
    image.save(path, **options)
    return str(path)


def close(pixel, expected, tolerance=3):
    return np.abs(np.array(pixel[:3], int) - expected).max() <= tolerance


@pytest.mark.parametrize("name", ["icc_adobe.png", "icc_p3.png"])
def test_files_of_cameras_and_phones_look_like_that_in_srgb(name):
    seen, expected = (np.asarray(load_image(str(PICTURES / file)), int) for file in (name, "icc_srgb.png"))
    assert np.abs(seen - expected).max() <= 3


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp", "a.tif", "a.avif"])
@pytest.mark.parametrize("space", SPACES)
def test_a_color_of_another_space_is_that_of_srgb(tmp_path, space, name):
    stored = stored_as(RED, SPACES[space])
    assert not close(stored, RED, 10)
    quality = {} if name in ("a.png", "a.tif") else {"quality": 95}
    path = saved(tmp_path / name, Image.new("RGB", (16, 16), stored), icc_profile=rgb_profile(SPACES[space]), **quality)
    assert close(load_image(path).getpixel((8, 8)), RED, 3 if name in ("a.png", "a.tif") else 8)


def jpeg_2000(path, image, profile):
    """A JPEG 2000 file with a profile, which Pillow does not write: in place of the box that says sRGB."""
    image.save(path, irreversible=False)
    content = path.read_bytes()
    header, colors = content.index(b"jp2h") - 4, content.index(b"colr") - 4
    end = colors + int.from_bytes(content[colors : colors + 4], "big")
    box = (11 + len(profile)).to_bytes(4, "big") + b"colr" + bytes([2, 0, 0]) + profile
    length = int.from_bytes(content[header : header + 4], "big") + len(box) - (end - colors)
    path.write_bytes(content[:header] + length.to_bytes(4, "big") + content[header + 4 : colors] + box + content[end:])
    return str(path)


def bitmap(path, image, profile):
    """A BMP of version 5 with a profile behind its pixels; Pillow writes version 3."""
    image.save(path)
    content = path.read_bytes()
    pixels = content[int.from_bytes(content[10:14], "little") :]
    numbers = {0: 124, 112: 124 + len(pixels), 116: len(profile)}
    header = bytearray(content[14:54] + bytes(84))
    header[56:60] = b"DEBM"
    for place, number in numbers.items():
        header[place : place + 4] = number.to_bytes(4, "little")
    start = (14 + 124).to_bytes(4, "little")
    path.write_bytes(content[:10] + start + bytes(header) + pixels + profile)
    return str(path)


@pytest.mark.parametrize(("name", "write"), [("a.jp2", jpeg_2000), ("a.bmp", bitmap)])
def test_a_profile_that_pillow_does_not_read_is_found(tmp_path, name, write):
    image = Image.new("RGB", (16, 16), stored_as(RED, SPACES["ProPhoto"]))
    assert close(load_image(write(tmp_path / name, image, rgb_profile(SPACES["ProPhoto"]))).getpixel((8, 8)), RED)
    plain = tmp_path / f"plain_{name}"
    image.save(plain)
    assert color_conversion(str(plain)) == "srgb"


@pytest.mark.parametrize("mode", ["L", "LA", "I;16"])
def test_gray_with_a_gamma_of_its_own_is_that_of_srgb(tmp_path, mode):
    image = Image.fromarray(np.full((4, 4), 50 * 257, np.uint16)) if mode == "I;16" else Image.new("L", (4, 4), 50)
    if mode == "LA":
        image.putalpha(255)
    path = saved(tmp_path / "a.png", image, icc_profile=gray_profile(1.8))
    expected = round(255 * (1.055 * (50 / 255) ** (1.8 / 2.4) - 0.055))  # the light of 50 at gamma 1.8, in sRGB
    assert close(load_image(path).getpixel((0, 0)), (expected,) * 3)


@pytest.mark.parametrize("name", ["a.jpg", "a.tif"])
def test_cmyk_with_a_profile_has_the_colors_of_that_printer(tmp_path, name):
    image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    image.paste((0, 0, 0, 255), (0, 0, 16, 8))
    plain, known = (
        saved(tmp_path / f"plain_{name}", image),
        saved(tmp_path / name, image, icc_profile=cmyk_profile(INKS)),
    )
    assert close(load_image(plain).getpixel((8, 12)), (255, 0, 0), 6)
    seen = load_image(known)
    assert close(seen.getpixel((8, 3)), (0, 0, 0), 6)
    assert close(seen.getpixel((8, 12)), (239, 113, 38), 12)  # L 62.7, a 52, b 62


def test_transparency_stays_and_the_colors_under_it_are_converted(tmp_path):
    image = Image.new("RGBA", (4, 4), (*stored_as(RED, SPACES["ProPhoto"]), 255))
    image.putpixel((0, 0), (0, 0, 0, 0))
    path = saved(tmp_path / "a.png", image, icc_profile=rgb_profile(SPACES["ProPhoto"]))
    layer = load_rgba(path)
    assert layer.getpixel((0, 0))[3] == 0
    assert layer.getpixel((2, 2))[3] == 255
    assert close(layer.getpixel((2, 2)), RED)
    assert load_image(path).getpixel((0, 0)) == (255, 255, 255)


def test_a_palette_is_converted(tmp_path):
    image = Image.new("P", (4, 4))
    image.putpalette([*stored_as(RED, SPACES["Adobe RGB"])])
    path = saved(tmp_path / "a.png", image, icc_profile=rgb_profile(SPACES["Adobe RGB"]))
    assert close(load_image(path).getpixel((0, 0)), RED)


def test_a_mask_is_read_in_srgb(tmp_path):
    path = saved(tmp_path / "a.png", Image.new("L", (8, 8), 50), icc_profile=gray_profile(1.8))
    assert load_mask(path, (8, 8), 8, 8).max() * 255 == pytest.approx(66, abs=3)


def test_profiles_of_srgb_leave_every_pixel_as_it_is(tmp_path):
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8))
    path = saved(tmp_path / "a.png", noise, icc_profile=srgb_profile())
    assert color_conversion(path) == "srgb"
    assert np.array_equal(load_image(path), noise)


@pytest.mark.parametrize("profile", [b"no profile", srgb_profile()[:200], gray_profile(1.8)])
def test_a_profile_that_is_damaged_or_of_other_images_counts_as_srgb(tmp_path, profile):
    path = saved(tmp_path / "a.png", Image.new("RGB", (4, 4), RED), icc_profile=profile)
    assert color_conversion(path) == "unusable"
    assert load_image(path).getpixel((0, 0)) == RED
