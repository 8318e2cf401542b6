"""Images are cropped in the dataset window, as a person does it with mouse and keys."""

import json

import numpy as np
import pytest
from PIL import Image
from PIL.ExifTags import Base

from modules.data.concepts import scan
from modules.data.crops import crop_of_sample
from modules.data.images import load_image

SIZE = (400, 300)  # upright
ROTATED = 6  # the EXIF orientation of the first image, whose file is 300 x 400


@pytest.fixture
def folder(tmp_path):
    """Three images; all four quarters have different colors, and the first file is turned by 90 degrees."""
    path = tmp_path / "foxes"
    path.mkdir()
    upright = Image.new("RGB", SIZE, (200, 30, 30))
    upright.paste((30, 200, 30), (200, 0, 400, 150))
    upright.paste((30, 30, 200), (0, 150, 200, 300))
    for number in range(3):
        exif = Image.Exif()
        exif[Base.Orientation] = 1 if number else ROTATED
        image = upright if number else upright.transpose(Image.Transpose.ROTATE_90)
        image.save(path / f"{number}.png", exif=exif)
        (path / f"{number}.txt").write_text("fox", encoding="utf-8")
    return path


@pytest.fixture
def window(app, folder, show_dataset):
    return show_dataset(app, folder, resolution=256)


@pytest.fixture
def pane(app, window, wait_for):
    """The cropper of the first image, opened by its key."""
    window.cells.canvas.focus_force()
    window.cells.canvas.event_generate("<c>")
    pane = window.side.crops
    wait_for(app, lambda: pane.frame is not None and pane.canvas.winfo_width() > 100)
    wait_for(app, lambda: window.cells.canvas.winfo_width() < window.winfo_width() // 2)
    app.update()
    return pane


def drag(pane, start: tuple[int, int], end: tuple[int, int]) -> None:
    """Drag with the left button from one pixel of the image to another."""
    first, last = (tuple(map(round, pane.canvas.to_screen(*place))) for place in (start, end))
    pane.canvas.event_generate("<ButtonPress-1>", x=first[0], y=first[1])
    pane.canvas.event_generate("<B1-Motion>", x=last[0], y=last[1], state=0x100)
    pane.canvas.event_generate("<ButtonRelease-1>", x=last[0], y=last[1], state=0x100)
    pane.update()


def keys(pane, *names: str) -> None:
    pane.canvas.focus_force()
    for name in names:
        pane.canvas.event_generate(name)
        pane.update()


def crops(folder) -> dict:
    path = folder / "image_settings.json"
    images = json.loads(path.read_text())["images"] if path.exists() else {}
    return {name: tuple(values["crop"].values()) for name, values in images.items()}


def test_a_drawn_crop_of_a_turned_image_is_trained_and_shown_and_undone(app, window, pane, folder, wait_for):
    before = (folder / "0.png").read_bytes()
    assert pane.frame.whole == SIZE
    drag(pane, (220, 20), (380, 130))
    assert pane._state.cget("text").endswith("a larger one is trained sharper.")
    keys(pane, "<Control-s>")
    wait_for(app, lambda: window.view.items[0].crop is not None)
    crop = window.view.items[0].crop
    assert crops(folder) == {"0.png": tuple(crop)}
    assert np.abs(np.array(crop) - (220, 20, 160, 110)).max() <= 3  # a pixel of the screen is more than one of it
    trained = scan(app.settings.config().concepts)
    assert (trained.widths[0], trained.heights[0]) == (crop.width, crop.height)
    part = crop_of_sample(trained, 0).of(load_image(trained.paths[0]))
    assert np.array(part).reshape(-1, 3).tolist() == [[30, 200, 30]] * (crop.width * crop.height)
    assert (folder / "0.png").read_bytes() == before
    keys(pane, "<Escape>")
    assert not window.side.is_cropping
    wait_for(app, lambda: any(key.crop and key in window.cells._photos for key in window.cells._in_sight))
    assert "cropped to" in window.side.details.cget("text")
    large = window.side.large
    wait_for(app, lambda: large.canvas.find_withtag("crop") and large._shown is not None)
    left, top, right, bottom = large.canvas.coords("crop")
    photo = large._photo
    assert (right - left) / photo.width() == pytest.approx(crop.width / SIZE[0], abs=0.02)
    assert (bottom - top) / photo.height() == pytest.approx(crop.height / SIZE[1], abs=0.02)
    assert left > large.canvas.winfo_width() / 2 > top
    window.caption.step("undo")
    wait_for(app, lambda: not crops(folder) and window.view.items[0].crop is None)
    wait_for(app, lambda: not large.canvas.find_withtag("crop"))


def test_arrows_move_and_resize_and_another_image_saves(app, window, pane, folder, wait_for):
    pane.frame.crop = pane.frame.crop._replace(x=100, y=100, width=120, height=80)
    keys(pane, "<Right>", "<Shift-Down>", "<Control-Left>", "<Control-Shift-Up>")
    assert pane.frame.crop == (101, 110, 119, 70)
    keys(pane, "<Alt-Down>")
    wait_for(app, lambda: crops(folder) == {"0.png": (101, 110, 119, 70)})
    wait_for(app, lambda: pane.frame is not None and window.side._item.path.endswith("1.png"))
    pane.aspect.set("1:1")
    pane._take_aspect("1:1")
    assert pane.frame.crop.width == pane.frame.crop.height == 300
    keys(pane, "<Control-z>")  # of what is not saved
    assert pane.frame.is_whole
    keys(pane, "<Alt-Up>")
    wait_for(app, lambda: pane.frame is not None and pane.frame.crop == (101, 110, 119, 70))
    keys(pane, "<BackSpace>", "<c>")
    wait_for(app, lambda: not crops(folder))
    assert not pane._captions.work.journal(0).can_redo
    window.caption.step("undo")
    wait_for(app, lambda: crops(folder) == {"0.png": (101, 110, 119, 70)})


def test_a_crop_that_could_not_be_saved_is_said(app, window, pane, folder, wait_for):
    (folder / "image_settings.json").write_text("{broken")
    drag(pane, (50, 50), (300, 200))
    keys(pane, "<Control-s>")
    wait_for(app, lambda: "is not saved" in window._notice)
    assert pane.is_changed
    (folder / "image_settings.json").unlink()
    keys(pane, "<Control-s>")
    wait_for(app, lambda: crops(folder))
