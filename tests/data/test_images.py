"""Whatever a picture is stored as, it comes out as upright RGB, or as one ImageError."""

import io
import pickle
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from modules.config.errors import UserError
from modules.data.buckets import crop_box
from modules.data.errors import ImageError
from modules.data.images import fit_image, load_image, read_size, to_array

RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)
LOSSLESS = ["png", "bmp", "tif"]


def red_and_blue(mode="RGB"):
    """Left half red, right half blue, 8 x 4."""
    image = Image.new("RGB", (8, 4), RED)
    image.paste(BLUE, (4, 0, 8, 4))
    return image.convert(mode)


def saved(tmp_path, image, name, **save):
    path = str(tmp_path / name)
    image.save(path, **save)
    return path


def pixels(image, *points):
    assert image.mode == "RGB"
    return [image.getpixel(point) for point in points]


@pytest.mark.parametrize("extension", LOSSLESS)
@pytest.mark.parametrize("mode", ["RGB", "P"])
def test_colours_come_back_exactly(tmp_path, extension, mode):
    image = load_image(saved(tmp_path, red_and_blue(mode), f"a.{extension}"))
    assert image.size == (8, 4)
    assert pixels(image, (0, 0), (7, 3)) == [RED, BLUE]


@pytest.mark.parametrize("name", ["a.jpg", "a.webp", "a.gif"])
def test_lossy_formats_come_close(tmp_path, name):
    image = load_image(saved(tmp_path, Image.new("RGB", (16, 16), (200, 100, 50)), name))
    assert np.abs(np.array(image).astype(int) - (200, 100, 50)).max() <= 6


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.jpg", "a.webp"])
def test_every_exif_orientation_comes_out_upright(tmp_path, orientation, name):
    upright = Image.new("RGB", (64, 32), "black")
    upright.paste(RED, (0, 0, 16, 16))  # top left
    upright.paste(BLUE, (48, 0, 64, 16))  # top right
    stored_as = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE"}
    stored_as |= {6: "ROTATE_90", 7: "TRANSVERSE", 8: "ROTATE_270"}
    stored = upright if orientation == 1 else upright.transpose(Image.Transpose[stored_as[orientation]])
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path, stored, name, exif=exif)
    image = load_image(path)
    assert image.size == read_size(path) == (64, 32)
    for point, colour in {(8, 8): RED, (56, 8): BLUE, (8, 24): (0, 0, 0), (56, 24): (0, 0, 0)}.items():
        assert np.abs(np.array(image.getpixel(point)) - colour).max() <= 8, point


def test_damaged_exif_leaves_the_pixels(tmp_path):
    path = saved(tmp_path, red_and_blue(), "a.png", exif=b"Exif\0\0 no TIFF header at all")
    assert read_size(path) == (8, 4)
    assert pixels(load_image(path), (0, 0)) == [RED]


@pytest.mark.parametrize("name", ["a.png", "a.webp", "a.tif"])
def test_transparency_becomes_white(tmp_path, name):
    image = red_and_blue("RGBA")
    image.putpixel((0, 0), (255, 0, 0, 0))
    image.putpixel((1, 0), (255, 0, 0, 128))
    options = {"lossless": True, "exact": True} if name == "a.webp" else {}
    clear, half, solid = pixels(load_image(saved(tmp_path, image, name, **options)), (0, 0), (1, 0), (7, 3))
    assert (clear, solid) == (WHITE, BLUE)
    assert np.abs(np.array(half) - (255, 127, 127)).max() <= 1


def test_grey_with_alpha_becomes_white_where_clear(tmp_path):
    image = Image.new("LA", (2, 1), (100, 255))
    image.putpixel((1, 0), (100, 0))
    assert pixels(load_image(saved(tmp_path, image, "a.png")), (0, 0), (1, 0)) == [(100, 100, 100), WHITE]


@pytest.mark.parametrize("name", ["a.png", "a.gif"])
def test_a_transparent_palette_colour_becomes_white(tmp_path, name):
    image = Image.new("P", (2, 1))
    image.putpalette([*RED, *BLUE])
    image.putpixel((1, 0), 1)
    assert pixels(load_image(saved(tmp_path, image, name, transparency=0)), (0, 0), (1, 0)) == [WHITE, BLUE]


def test_a_palette_with_an_alpha_for_each_colour(tmp_path):
    image = Image.new("P", (2, 1))
    image.putpalette([*RED, *BLUE])
    image.putpixel((1, 0), 1)
    path = saved(tmp_path, image, "a.png", transparency=bytes([255, 0]))
    assert pixels(load_image(path), (0, 0), (1, 0)) == [RED, WHITE]


@pytest.mark.parametrize(("mode", "colour"), [("RGB", RED), ("L", 90)])
def test_a_transparent_colour_without_a_palette_becomes_white(tmp_path, mode, colour):
    image = Image.new(mode, (2, 1), colour)
    image.putpixel((1, 0), 0)
    path = saved(tmp_path, image, "a.png", transparency=colour)
    assert pixels(load_image(path), (0, 0), (1, 0)) == [WHITE, (0, 0, 0)]


@pytest.mark.parametrize("name", ["a.jpg", "a.tif"])
def test_cmyk_keeps_its_colours(tmp_path, name):
    path = saved(tmp_path, Image.new("CMYK", (8, 8), (0, 255, 255, 0)), name)  # magenta + yellow ink = red
    assert np.abs(np.array(pixels(load_image(path), (4, 4))[0]) - RED).max() <= 6


def test_an_inverted_adobe_jpeg_is_not_a_negative(tmp_path):
    """Adobe stores CMYK inverted and says so in an APP14 marker, which Pillow writes too."""
    path = tmp_path / "a.jpg"
    Image.new("CMYK", (8, 8), (0, 0, 0, 0)).save(path)
    assert b"Adobe" in path.read_bytes()
    assert pixels(load_image(str(path)), (4, 4)) == [WHITE]


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_16_bit_grey_is_scaled_not_clipped(tmp_path, name):
    values = np.array([[0, 200, 32896, 65535]], np.uint16)  # 200 / 257 rounds to 1
    image = load_image(saved(tmp_path, Image.fromarray(values), name))
    assert [p[0] for p in pixels(image, (0, 0), (1, 0), (2, 0), (3, 0))] == [0, 1, 128, 255]


def test_big_endian_16_bit_tiff_reads_like_the_little_endian_one(tmp_path):
    values = np.array([[0, 32896]], np.uint16)
    little = (tmp_path / "little.tif", "<", b"II")
    big = (tmp_path / "big.tif", ">", b"MM")
    for path, order, mark in (little, big):
        path.write_bytes(grey_tiff(values, order, mark))
    assert np.array_equal(load_image(str(little[0])), load_image(str(big[0])))
    assert pixels(load_image(str(big[0])), (1, 0)) == [(128, 128, 128)]


def grey_tiff(values, order, mark):
    """An uncompressed TIFF of 16-bit grey, by hand: Pillow writes little-endian only."""
    tags = [(256, values.shape[1]), (257, values.shape[0]), (258, 16), (259, 1), (262, 1), (273, 0)]
    tags += [(277, 1), (278, values.shape[0]), (279, values.nbytes)]
    tags[5] = (273, 8 + 2 + 12 * len(tags) + 4)
    data = mark + np.array([42], order + "u2").tobytes() + np.array([8], order + "u4").tobytes()
    data += np.array([len(tags)], order + "u2").tobytes()
    for tag, value in tags:
        data += np.array([tag, 4], order + "u2").tobytes() + np.array([1, value], order + "u4").tobytes()
    return data + bytes(4) + values.astype(order + "u2").tobytes()


def test_32_bit_integers_are_taken_as_16_bit_values(tmp_path):
    image = Image.fromarray(np.array([[-5, 32896, 70000]], np.int32))
    assert image.mode == "I"
    loaded = load_image(saved(tmp_path, image, "a.tif"))
    assert [p[0] for p in pixels(loaded, (0, 0), (1, 0), (2, 0))] == [0, 128, 255]


def test_one_bit_pictures_are_black_and_white(tmp_path):
    image = Image.new("1", (2, 1), 0)
    image.putpixel((1, 0), 1)
    assert pixels(load_image(saved(tmp_path, image, "a.png")), (0, 0), (1, 0)) == [(0, 0, 0), WHITE]


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.png", "a.tif"])
def test_of_an_animation_the_first_frame_is_taken(tmp_path, name):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, BLUE)]
    options = {"lossless": True} if name == "a.webp" else {}
    path = saved(tmp_path, frames[0], name, save_all=True, append_images=frames[1:], **options)
    with Image.open(path) as check:
        assert check.n_frames == 2
    assert pixels(load_image(path), (4, 4)) == [RED]


def test_floating_point_pixels_are_refused(tmp_path):
    path = saved(tmp_path, Image.new("F", (4, 4), 0.5), "a.tif")
    with pytest.raises(ImageError, match="floating-point"):
        load_image(path)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp", "a.bmp", "a.gif", "a.tif"])
def test_a_truncated_file_is_refused(tmp_path, name):
    noise = Image.effect_noise((64, 64), 80).convert("RGB")
    path = tmp_path / name
    noise.save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ImageError) as error:
        load_image(str(path))
    assert error.value.path == str(path)
    assert str(path) in str(error.value)
    assert error.value.reason in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_no_picture_is_refused(tmp_path):
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n"  # Pillow would start Ghostscript
    for name, content in (("empty.png", b""), ("text.jpg", b"I am a text"), ("eps.png", postscript)):
        (tmp_path / name).write_bytes(content)
        for read in (load_image, read_size):
            with pytest.raises(ImageError, match=r"it is empty|that of no image format that is read"):
                read(str(tmp_path / name))


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    (tmp_path / "folder.png").mkdir()
    for name in ("gone.png", "folder.png"):
        with pytest.raises(ImageError):
            load_image(str(tmp_path / name))


def test_a_decompression_bomb_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    path = saved(tmp_path, Image.new("RGB", (100, 100)), "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    for read in (load_image, read_size):
        with pytest.raises(ImageError, match="decompression bomb") as refused:
            read(path)
        assert not refused.value.reason.endswith(".")  # it becomes part of a sentence


def encoded_pictures():
    exif = Image.Exif()
    exif[0x0112] = 6
    noise = Image.effect_noise((24, 16), 80).convert("RGB")
    for form, image in (("PNG", noise), ("JPEG", noise), ("WEBP", noise), ("TIFF", noise), ("BMP", noise)):
        buffer = io.BytesIO()
        image.save(buffer, form, **({} if form == "BMP" else {"exif": exif}))
        yield buffer.getvalue()
    buffer = io.BytesIO()
    noise.convert("P").save(buffer, "GIF")
    yield buffer.getvalue()


@pytest.mark.filterwarnings("ignore")
def test_damaged_bytes_never_raise_anything_but_picture_error(tmp_path):
    draw = random.Random(1)
    originals = list(encoded_pictures())
    path = tmp_path / "a.png"
    num_refused = 0
    for i in range(600):
        content = bytearray(originals[i % len(originals)])
        for _ in range(draw.choice([1, 3, 10])):
            content[draw.randrange(min(len(content), 200))] = draw.choice([0, 255, draw.randrange(256)])
        path.write_bytes(content)
        for read in (read_size, load_image):
            try:
                read(str(path))
            except ImageError:
                num_refused += 1
    assert num_refused > 100


def test_the_error_is_the_users_and_survives_another_process():
    error = pickle.loads(pickle.dumps(ImageError("a.png", "broken")))  # noqa: S301  our own bytes
    assert isinstance(error, UserError)
    assert (error.path, error.reason) == ("a.png", "broken")
    assert str(error) == "image a.png can't be used (broken): repair it or remove it."


def test_a_picture_of_the_right_size_is_not_touched():
    image = Image.effect_noise((64, 48), 80).convert("RGB")
    assert np.array_equal(fit_image(image, 64, 48), image)


def test_a_picture_that_only_needs_cutting_is_not_resampled():
    image = Image.effect_noise((81, 48), 80).convert("RGB")
    assert np.array_equal(fit_image(image, 64, 48), image.crop((8, 0, 72, 48)))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 90), st.integers(1, 90), st.sampled_from([8, 24, 64]), st.sampled_from([8, 24, 64]))
def test_fitting_equals_resizing_all_and_cutting(width, height, bucket_w, bucket_h):
    # Values in the middle: Lanczos overshoots, and where that is clipped depends on which axis Pillow takes first.
    noise = np.random.default_rng(width * 100 + height).integers(96, 160, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    fitted = fit_image(image, bucket_w, bucket_h)
    assert fitted.size == (bucket_w, bucket_h)
    size, box = crop_box(width, height, bucket_w, bucket_h)
    expected = np.array(image.resize(size, Image.Resampling.LANCZOS).crop(box)).astype(int)
    # 2: each axis is rounded to 8 bits, and the corners of the kept part to float32
    assert np.abs(np.array(fitted) - expected).max() <= 2


def test_a_panorama_is_fitted_without_growing_first():
    # resized whole it would be 5,120,000 x 512 pixels, 8 GB
    assert fit_image(Image.new("RGB", (20_000, 2), RED), 512, 512).size == (512, 512)


def test_an_array_has_channels_first_and_values_from_minus_one_to_one():
    image = red_and_blue()
    image.putpixel((1, 0), (255, 128, 0))
    array = to_array(image)
    assert array.shape == (3, 4, 8)
    assert array.dtype == np.float32
    assert array.flags.c_contiguous
    assert array[:, 0, 0].tolist() == [1, -1, -1]
    assert array[:, 3, 7].tolist() == [-1, -1, 1]
    assert array[1, 0, 1] == pytest.approx(128 / 127.5 - 1, abs=1e-6)
