"""Thousands of images, of which only visible ones are drawn and decoded."""

import threading
import tkinter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from modules.ui.models.decoding import PictureKey, decode_pictures, fit_inside
from modules.ui.widgets.PictureCanvas import PictureCanvas
from tests.support.waiting import PATIENCE_SECONDS


@pytest.fixture
def app(shared_app):
    return shared_app


@pytest.fixture
def pictures(tmp_path) -> list[str]:
    """60 images of different colours."""
    paths = []
    for number in range(60):
        path = tmp_path / f"{number:04d}.png"
        Image.new("RGB", (40, 20), (number, 100, 255 - number)).save(path)
        paths.append(str(path))
    return paths


@pytest.fixture
def thumbnails(app, settle):
    from modules.ui.widgets.Thumbnails import Thumbnails

    window = tkinter.Toplevel(app)
    window.geometry("500x400")
    made = Thumbnails(window, app, side=100)
    made.pack(fill="both", expand=True)
    settle(app)
    return made


def shown_names(thumbnails) -> set[str]:
    canvas = thumbnails.canvas
    return {canvas.itemcget(item, "text") for item in canvas.find_all() if canvas.type(item) == "text"}


def test_a_large_picture_is_made_smaller_and_keeps_its_shape():
    assert fit_inside(Image.new("RGB", (1000, 500)), 128, 128).size == (128, 64)


def test_a_tiny_picture_is_enlarged_with_sharp_pixels():
    picture = Image.new("RGB", (2, 1), "black")
    picture.putpixel((0, 0), (255, 0, 0))
    large = fit_inside(picture, 100, 100)
    assert large.size == (100, 50)
    assert {colour for _, colour in large.getcolors()} == {(255, 0, 0), (0, 0, 0)}


def test_a_damaged_picture_is_answered_with_the_reason(tmp_path):
    path = tmp_path / "broken.png"
    path.write_bytes(b"no image")
    [(_, reason)] = decode_pictures([PictureKey(str(path), 64, 64)])
    assert "no image format" in reason


def test_a_preview_of_a_large_photo_is_decoded_smaller(tmp_path):
    from modules.data.images import load_image

    path = tmp_path / "photo.jpg"
    noise = np.random.default_rng(0).integers(0, 255, (800, 1600, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    assert load_image(str(path)).size == (1600, 800)
    assert load_image(str(path), at_least=(150, 150)).size == (400, 200)  # half of it would be too low


@pytest.mark.parametrize("is_row", [False, True])
def test_a_scrollbar_takes_no_room_from_what_shares_the_height_or_width(app, settle, pictures, is_row):
    from modules.ui.cards.SamplesCard import SampleStrip
    from modules.ui.widgets.Thumbnails import Thumbnails

    window = tkinter.Toplevel(app)
    window.geometry("600x500")
    window.grid_rowconfigure((0, 1), weight=1)
    window.grid_columnconfigure((0, 1), weight=1)
    shown = SampleStrip(window, app) if is_row else Thumbnails(window, app)
    shown.grid(row=0, column=0, sticky="nsew")
    sizes = []
    for count in (1, 60):
        shown.show([("a fox", path) if is_row else path for path in pictures[:count]])
        settle(app)
        sizes.append(shown.winfo_width() if is_row else shown.winfo_height())
    assert (shown._across if is_row else shown._down).winfo_ismapped()
    assert sizes[0] == sizes[1]  # else a number of images between them would show and hide it for ever


@pytest.mark.parametrize("size", [10, 11, 12, 13])
def test_texts_are_as_wide_as_they_are_measured(app, thumbnails, size):
    font = app.theme.plain_font(size)
    for text in ("unreadable", "duplicate", "left out"):
        left, _, right, _ = thumbnails.canvas.bbox(thumbnails.canvas.create_text(0, 0, text=text, font=font))
        assert right - left == pytest.approx(thumbnails.texts.font(font).measure(text), abs=2)


def test_only_pictures_in_sight_are_decoded(app, thumbnails, pictures, wait_for):
    thumbnails.show(pictures * 100)
    wait_for(app, lambda: thumbnails._photos and not thumbnails._is_loading)
    in_sight = set(thumbnails._numbers_in_sight())
    assert len(in_sight) < 40
    assert {Path(key[0]).name for key in thumbnails._photos} <= {Path(thumbnails.paths[n]).name for n in in_sight}


def test_scrolling_to_the_end_shows_the_last_pictures(app, thumbnails, pictures, wait_for):
    thumbnails.show(pictures)
    thumbnails._scroll(1, "moveto", "1.0")
    app.update()
    assert "0059.png" in shown_names(thumbnails)
    assert "0000.png" not in shown_names(thumbnails)
    wait_for(app, lambda: any(key[0] == pictures[-1] for key in thumbnails._photos))


def test_the_memory_of_five_thousand_pictures_stays_flat(app, thumbnails, pictures, monkeypatch):
    from modules.ui.widgets.PictureCanvas import PictureCanvas as Canvas

    monkeypatch.setattr(Canvas, "cache_bytes", 30 * 100 * 100 * 4)
    thumbnails.show([f"{number}.png" for number in range(5000)])
    app.update()
    image = Image.new("RGB", (100, 100))
    for place in range(0, 5000, 100):
        thumbnails.choose(place)
        thumbnails._paint()
        thumbnails._take([(key, image) for key in thumbnails._in_sight])
    most = 30 + len(thumbnails._in_sight)
    assert len(thumbnails._photos) <= most
    names = thumbnails.tk.splitlist(thumbnails.tk.call("image", "names"))
    assert sum(str(name).startswith("pyimage") for name in names) <= most + 60  # including some of CustomTkinter's own
    assert len(thumbnails.canvas.find_all()) <= 4 * len(thumbnails._in_sight) + 5


def test_arrows_move_the_choice_and_keep_it_in_sight(app, thumbnails, pictures):
    chosen = []
    thumbnails.on_choose = chosen.append
    thumbnails.show(pictures)
    app.update()
    thumbnails.canvas.focus_force()
    for key in ("Right", "Right", "Down", "End", "Up"):
        thumbnails.canvas.event_generate(f"<{key}>")
        app.update()
    columns = thumbnails.num_columns()
    assert chosen == [0, 1, 1 + columns, 59, 59 - columns]
    assert thumbnails.chosen in thumbnails._numbers_in_sight()


def test_return_opens_the_chosen_picture(app, thumbnails, pictures):
    opened = []
    thumbnails.on_open = opened.append
    thumbnails.show(pictures)
    thumbnails.choose(7)
    app.update()
    thumbnails.canvas.focus_force()
    thumbnails.canvas.event_generate("<Return>")
    app.update()
    assert opened == [7]


def test_a_click_chooses_the_picture_under_the_pointer(app, thumbnails, pictures):
    thumbnails.show(pictures)
    app.update()
    x, y = thumbnails.corner_of(thumbnails.num_columns() + 1)
    thumbnails.canvas.event_generate("<Button-1>", x=x + 20, y=y + 20)
    app.update()
    assert thumbnails.chosen_path == pictures[thumbnails.num_columns() + 1]


def test_a_damaged_picture_says_so_in_its_place(app, thumbnails, tmp_path, wait_for):
    path = tmp_path / "broken.png"
    path.write_bytes(b"no image")
    thumbnails.show([str(path)])
    wait_for(app, lambda: any(text.startswith("can't be read") for text in shown_names(thumbnails)))


def test_a_gallery_that_is_destroyed_while_it_decodes_raises_nothing(app, thumbnails, pictures, wait_for, monkeypatch):
    is_gone, came, take = threading.Event(), [], PictureCanvas._take

    def decode_late(keys):
        assert is_gone.wait(PATIENCE_SECONDS)
        return decode_pictures(keys)

    monkeypatch.setattr("modules.ui.widgets.PictureCanvas.decode_pictures", decode_late)
    monkeypatch.setattr(PictureCanvas, "_take", lambda *decoded: (came.append(decoded), take(*decoded)))
    thumbnails.show(pictures)
    app.update()
    assert thumbnails._is_loading
    thumbnails.destroy()
    is_gone.set()
    wait_for(app, lambda: came)
    app.update()  # an exception in it fails the test


def test_a_picture_that_was_decoded_before_a_refresh_is_read_again(app, thumbnails, pictures, wait_for, monkeypatch):
    has_read, is_refreshed = threading.Event(), threading.Event()

    def decode_slowly(keys):
        decoded = decode_pictures(keys)
        has_read.set()
        assert is_refreshed.wait(120)
        return decoded

    monkeypatch.setattr("modules.ui.widgets.PictureCanvas.decode_pictures", decode_slowly)
    thumbnails.show(pictures[:1])
    wait_for(app, has_read.is_set)
    Path(pictures[0]).write_bytes(b"no image")
    thumbnails.forget_pictures()
    is_refreshed.set()
    wait_for(app, lambda: any(text.startswith("can't be read") for text in shown_names(thumbnails)))


def test_colours_follow_the_appearance(app, thumbnails, pictures):
    thumbnails.show(pictures)
    app.theme.set_appearance("dark")
    app.update()
    assert thumbnails.canvas.cget("bg") == app.theme.card[1]
    app.theme.set_appearance("light")
    app.update()
    assert thumbnails.canvas.cget("bg") == app.theme.card[0]
