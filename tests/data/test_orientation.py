"""An image is turned by its orientation wherever that is stored, and its size and its pixels agree."""

import zlib
from pathlib import Path

import pytest
from PIL import Image

from modules.data.images import load_image, read_size

PICTURES = Path(__file__).parent / "pictures"
XMP = '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'


def chunk(kind, data):
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def exif_of(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()[6:]


def behind_the_pixels(path, *chunks, size=(80, 40)):
    """A PNG, left half red and right half blue, with chunks between its pixels and its end."""
    image = Image.new("RGB", size, "red")
    image.paste("blue", (size[0] // 2, 0, *size))
    image.save(path)
    content = path.read_bytes()
    path.write_bytes(content[:-12] + b"".join(chunks) + content[-12:])
    return str(path)


def test_png_with_exif_behind_the_pixels_has_one_size():
    for name in ("exif_after.png", "exif_before.png"):
        path = str(PICTURES / name)
        assert read_size(path) == load_image(path).size == (40, 80)


@pytest.mark.parametrize(
    "metadata",
    [
        chunk(b"eXIf", exif_of(6)),
        chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP.encode()),
        chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(
            b"\nexif\n      32\n" + (b"Exif\0\0" + exif_of(6)).hex().encode() + b"\n"
        )),
        chunk(b"tEXt", b"parameters\0a prompt") + chunk(b"eXIf", exif_of(6)) + chunk(b"tIME", bytes(7)),
        chunk(b"tEXt", b"workflow\0" + bytes([65]) * 100_000) + chunk(b"eXIf", exif_of(6)),
        chunk(b"eXIf", exif_of(6)) + chunk(b"tEXt", b"workflow\0" + bytes([65]) * 100_000),
    ],
    ids=["exif", "xmp", "raw profile", "among others", "behind much text", "in front of much text"],
)  # fmt: skip
def test_every_place_behind_the_pixels_is_read(tmp_path, metadata):
    path = behind_the_pixels(tmp_path / "a.png", metadata)
    image = load_image(path)
    assert read_size(path) == image.size == (40, 80)
    assert [image.getpixel(point) for point in ((20, 0), (20, 79))] == [(255, 0, 0), (0, 0, 255)]


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        chunk(b"tEXt", b"comment\0IDAT eXIf"),
        chunk(b"eXIf", b"no EXIF at all"),
        chunk(b"eXIf", exif_of(6))[:-4] + bytes(4),  # the checksum is wrong
    ],
)
def test_without_an_orientation_it_stays_as_it_is(tmp_path, metadata):
    path = behind_the_pixels(tmp_path / "a.png", metadata)
    assert read_size(path) == (80, 40)


@pytest.mark.parametrize("name", ["a.webp", "a.jpg", "a.avif"])
def test_the_orientation_of_xmp_alone_is_heeded(tmp_path, name):
    Image.new("RGB", (80, 40)).save(tmp_path / name, xmp=XMP.encode())
    path = str(tmp_path / name)
    assert read_size(path) == load_image(path).size == (40, 80)
