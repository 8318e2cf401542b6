"""Every format of images that people have is read, or named with what would read it."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from modules.config.ConceptConfig import ConceptConfig
from modules.data.concepts import scan
from modules.data.errors import ImageError
from modules.data.image_formats import EXTENSIONS, readable_extensions
from modules.data.images import load_image, read_size

PICTURES = Path(__file__).parent / "pictures"
COLOR = (200, 100, 50)
SAVED = {
    ".jpg": "JPEG", ".jpeg": "JPEG", ".jfif": "JPEG", ".jpe": "JPEG", ".png": "PNG", ".apng": "PNG", ".webp": "WEBP",
    ".avif": "AVIF", ".jp2": "JPEG2000", ".j2k": "JPEG2000", ".jpx": "JPEG2000", ".bmp": "BMP", ".tif": "TIFF",
    ".tiff": "TIFF", ".gif": "GIF", ".tga": "TGA", ".qoi": "QOI", ".ppm": "PPM",
}  # fmt: skip
HEIC = b"\x00\x00\x00\x1cftypheic" + bytes(64)
JXL = b"\xff\x0a" + bytes(64)


@pytest.mark.parametrize("extension", SAVED)
def test_it_is_found_and_read(tmp_path, extension):
    Image.new("RGB", (32, 16), COLOR).save(tmp_path / f"a{extension}", SAVED[extension])
    (path,) = scan([ConceptConfig(path=str(tmp_path))]).paths
    assert read_size(path) == (32, 16)
    assert np.abs(np.array(load_image(path).getpixel((8, 8))) - COLOR).max() <= 8


def test_these_are_all_that_are_read_without_plugins():
    assert readable_extensions(lambda module: False) == set(SAVED)
    assert set(SAVED) <= EXTENSIONS


@pytest.mark.parametrize("name", ["picture.avif", "picture.jfif"])
def test_what_browsers_save_is_read(name):
    assert load_image(str(PICTURES / name)).size == (80, 40)


@pytest.mark.parametrize(("content", "package"), [(HEIC, "pillow-heif"), (JXL, "pillow-jxl-plugin")])
@pytest.mark.parametrize("name", ["a.jpg", "a.heic"])  # phones rename them when they send them
def test_without_its_plugin_the_content_is_named_with_what_reads_it(tmp_path, content, package, name, monkeypatch):
    monkeypatch.setattr("modules.data.image_formats._is_installed", lambda module: False)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ImageError, match=f"pip install {package}"):
        read_size(str(tmp_path / name))


@pytest.mark.parametrize(("module", "extension"), [("pillow_heif", ".heic"), ("pillow_jxl", ".jxl")])
def test_with_its_plugin_it_is_read(tmp_path, module, extension):
    plugin = pytest.importorskip(module)
    if module == "pillow_heif":
        plugin.register_heif_opener()
    Image.new("RGB", (64, 32), COLOR).save(tmp_path / f"a{extension}", quality=95)
    (path,) = scan([ConceptConfig(path=str(tmp_path))]).paths
    assert load_image(path).size == read_size(path) == (64, 32)
    assert np.abs(np.array(load_image(path).getpixel((8, 8))) - COLOR).max() <= 8


def test_text_is_no_targa_which_has_no_mark(tmp_path):
    for name in ("a.png", "a.jpg"):
        Image.new("RGB", (8, 8), COLOR).save(tmp_path / "a.tga")
        shutil.copy(tmp_path / "a.tga", tmp_path / name)
        with pytest.raises(ImageError, match="no image format that is read"):
            read_size(str(tmp_path / name))


@pytest.mark.parametrize("extension", [".png", ".tga", ".jp2", ".ppm", ".avif"])
def test_no_name_makes_an_image_start_another_program(tmp_path, extension, monkeypatch):
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda *arguments, **options: started.append(arguments))
    path = tmp_path / f"a{extension}"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")
    with pytest.raises(ImageError):
        load_image(str(path))
    assert started == []
