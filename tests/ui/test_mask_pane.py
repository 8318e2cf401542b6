"""Masks are painted in the dataset window, as a person does it with mouse and keys."""

import numpy as np
import pytest
from PIL import Image

from modules.curation.FileChanges import ChangedOutside
from modules.data.masks import load_mask
from modules.ui.models.DatasetView import Trait
from modules.ui.windows import MaskPane, unsaved_edits

SIZE = (400, 300)


@pytest.fixture
def app(shared_app):
    return shared_app


@pytest.fixture
def folder(tmp_path):
    """Three images of two colors."""
    path = tmp_path / "foxes"
    path.mkdir()
    for number in range(3):
        image = Image.new("RGB", SIZE, (40, 120, 60 * number))
        image.paste((230, 120, 40), (100, 50, 300, 250))
        image.save(path / f"{number}.png")
        (path / f"{number}.txt").write_text("fox", encoding="utf-8")
    return path


@pytest.fixture
def window(app, folder, show_dataset):
    return show_dataset(app, folder)


@pytest.fixture
def pane(app, window, wait_for):
    """The painter of the first image, opened by its key."""
    window.cells.canvas.focus_force()
    window.cells.canvas.event_generate("<m>")
    pane = window.side.masks
    wait_for(app, lambda: pane.opened is not None and pane.canvas.winfo_width() > 100)
    wait_for(app, lambda: pane.canvas.view.frame.size == (pane.canvas.winfo_width(), pane.canvas.winfo_height()))
    return pane


def test_what_paints_and_compares_is_made_only_when_it_is_wanted(window):
    window.side.save()
    window.side._take_renewed(window.view.items)
    assert not {"masks", "groups"} & vars(window.side).keys()
    window.side.toggle_painting()
    assert vars(window.side).keys() & {"masks", "groups"} == {"masks"}


def drag(pane, *points: tuple[int, int], state: int = 0) -> None:
    """Draw with the left button through pixels of the image."""
    places = [tuple(map(round, pane.canvas.view.to_screen(*point))) for point in points]
    pane.canvas.event_generate("<ButtonPress-1>", x=places[0][0], y=places[0][1], state=state)
    for x, y in places[1:]:
        pane.canvas.event_generate("<B1-Motion>", x=x, y=y, state=0x100 | state)
    pane.canvas.event_generate("<ButtonRelease-1>", x=places[-1][0], y=places[-1][1], state=0x100 | state)
    pane.update()


def keys(pane, *names: str) -> None:
    pane.canvas.focus_force()
    for name in names:
        pane.canvas.event_generate(name)
    pane.update()


def saved(folder, number: int) -> np.ndarray:
    """The mask of an image as training reads it."""
    return load_mask(str(folder / f"{number}-masklabel.png"), SIZE, *SIZE)[0]


def test_a_painted_stroke_is_the_mask_that_training_reads(app, window, pane, folder, wait_for):
    before = (folder / "0.png").read_bytes()
    pane.canvas.set_diameter(41)
    drag(pane, (120, 150), (200, 150), (280, 150))
    x, y = map(round, pane.canvas.view.to_screen(200, 150))
    assert pane.canvas.view.frame.getpixel((x, y)) != pane.canvas.view._base.getpixel((x, y))  # it is seen
    painted = pane.opened.painting.values.copy()
    keys(pane, "<Control-s>")
    lacks = [False, True, True]
    wait_for(app, lambda: [bool(item.traits & Trait.NO_MASK) for item in window.view.items] == lacks)
    assert window.view.items[0].mask == str(folder / "0-masklabel.png")
    assert np.array_equal(saved(folder, 0) * 255, painted)
    assert saved(folder, 0)[150, 120:280].min() == 1
    assert saved(folder, 0)[150 + 30].max() == 0
    assert pane.opened.painting.can_undo  # what was painted here stays open, and can be taken back
    assert (folder / "0.png").read_bytes() == before


def test_another_image_or_the_end_of_painting_saves_and_undo_of_files_takes_it_back(
    app, window, pane, folder, wait_for
):
    keys(pane, "<r>")
    drag(pane, (100, 50), (299, 249))
    keys(pane, "<Alt-Down>")
    wait_for(app, lambda: pane.opened is not None and pane.opened.item.path.endswith("1.png"))
    drag(pane, (0, 0), (10, 10))
    keys(pane, "<Escape>")
    assert not window.side.is_painting
    wait_for(app, lambda: (folder / "1-masklabel.png").exists() and window.view.items[1].mask)
    expected = np.zeros((300, 400))
    expected[50:250, 100:300] = 1
    assert np.abs(saved(folder, 0) - expected).sum() <= 2 * (200 + 200)  # a screen pixel is not one of the image
    window.caption.step("undo")
    wait_for(app, lambda: not window.view.items[1].mask)
    assert not (folder / "1-masklabel.png").exists()
    assert window.view.items[0].mask


def test_tools_undo_and_shift_which_erases(app, pane, wait_for):
    painting = pane.opened.painting
    keys(pane, "<g>")
    drag(pane, (200, 150))  # the square in the middle
    wait_for(app, lambda: not pane.canvas.is_busy)
    assert painting.values.sum() == 200 * 200 * 255
    keys(pane, "<p>")
    for corner in ((150, 100), (250, 100), (250, 200)):
        drag(pane, corner, state=0x1)
    pane.canvas.event_generate("<Return>", state=0x1)
    assert painting.values[150, 220] == 0
    assert painting.values[190, 160] == 255
    keys(pane, "<Control-z>")
    assert painting.values[150, 220] == 255
    keys(pane, "<i>")
    wait_for(app, lambda: not pane.canvas.is_busy)
    assert painting.values[150, 220] == 0
    keys(pane, "<Control-z>", "<Control-z>")
    assert not painting.values.any()
    assert not painting.is_changed


def test_zooming_keeps_what_is_under_the_pointer_and_paints_there(pane):
    view = pane.canvas.view

    def zoom(place: tuple[int, int], notches: int) -> None:
        for _ in range(notches):
            pane.canvas.event_generate("<Control-Button-4>", x=place[0], y=place[1])
        pane.update()

    zoom(tuple(map(round, view.to_screen(200, 150))), 6)  # until the image is larger than the view in both directions
    place = pane.canvas.winfo_width() // 3, pane.canvas.winfo_height() // 4
    at = view.to_mask(*place)
    zoom(place, 4)
    assert view.zoom > 8 * view.fit_zoom
    assert view.to_mask(*place) == pytest.approx(at, abs=0.01)
    pane.canvas.set_diameter(3)
    drag(pane, at)
    assert pane.opened.painting.values[int(at[1]), int(at[0])] == 255
    keys(pane, "<Key-0>")
    assert view.zoom == view.fit_zoom


def test_the_brush_is_outlined_only_where_the_pointer_is(pane):
    canvas = pane.canvas
    canvas._on_leave(None)  # wherever the pointer of this display is
    canvas.set_diameter(60)
    pane._choose("Brush")
    assert canvas.find_withtag("cursor") == ()
    canvas.event_generate("<Enter>", x=50, y=40)
    assert canvas.coords(canvas.find_withtag("cursor")[0])[0] == pytest.approx(50 - 30 * canvas.view.zoom)
    canvas.event_generate("<Leave>")
    canvas._draw()
    assert canvas.find_withtag("cursor") == ()


def test_what_is_drawn_in_parts_is_what_is_drawn_at_once(pane):
    view = pane.canvas.view
    pane.canvas.set_diameter(30)
    drag(pane, (20, 20), (150, 120), (380, 280))
    parts = np.asarray(view.frame).astype(int)
    view.fit()
    assert np.abs(np.asarray(view.frame).astype(int) - parts).max() <= 2


def test_a_mask_that_another_program_has_changed_is_asked_about(app, window, pane, folder, wait_for, monkeypatch):
    asked = []

    def answer(app, title, text, answers, danger=""):
        asked.append(answers)
        return MaskPane.OVERWRITE if len(asked) > 1 else MaskPane.KEEP

    monkeypatch.setattr(MaskPane, "ask", answer)
    Image.new("L", SIZE, 77).save(folder / "0-masklabel.png")
    drag(pane, (200, 150))
    for count in (1, 2):
        keys(pane, "<Control-s>")
        wait_for(app, lambda count=count: len(asked) == count)
        if count == 1:
            assert saved(folder, 0)[0, 0] == pytest.approx(77 / 255)
            assert pane.opened.painting.is_changed
    wait_for(app, lambda: window.view.items[0].mask)
    assert saved(folder, 0)[150, 200] == 1


def test_a_mask_that_could_not_be_saved_is_shown_again(app, window, pane, folder, wait_for, monkeypatch):
    write = pane.opened.work.write_mask
    monkeypatch.setattr(MaskPane, "ask", lambda *arguments, **options: MaskPane.KEEP)
    monkeypatch.setattr(pane.opened.work, "write_mask", refuse)
    opened = pane.opened
    drag(pane, (200, 150))
    keys(pane, "<Alt-Down>")
    wait_for(app, lambda: pane.opened is opened and window.cells.selection.current == 0)
    assert opened.painting.is_changed
    monkeypatch.setattr(pane.opened.work, "write_mask", write)
    keys(pane, "<Control-s>")
    wait_for(app, lambda: (folder / "0-masklabel.png").exists())


def test_a_mask_that_is_not_saved_as_the_window_closes_is_kept_beside_the_image(
    app, window, pane, folder, wait_for, monkeypatch
):
    monkeypatch.setattr(unsaved_edits, "ask", lambda *arguments, **options: None)
    monkeypatch.setattr(pane.opened.work, "write_mask", refuse)
    drag(pane, (200, 150))
    window.hide()
    wait_for(app, lambda: (folder / "0.unsaved-masklabel.png").exists())


def refuse(*arguments):
    raise ChangedOutside(["0-masklabel.png"])


def colored(window, photo, size: int = 20) -> bool:
    """Whether the middle of what is shown is in the color of masks."""
    red, green, blue = window.tk.call(str(photo), "get", photo.width() // 2, photo.height() // 2)
    return red > green + 60 and blue > 60


def test_masks_are_shown_over_thumbnails_and_the_large_view_and_follow_the_painter(app, window, pane, folder, wait_for):
    keys(pane, "<Escape>")
    window.cells.canvas.focus_force()
    window.cells.canvas.event_generate("<o>")
    wait_for(app, lambda: not window.cells.is_loading)

    def is_colored() -> bool:
        return any(colored(window, one) for key, one in window.cells._photos.items() if key.mask and key.version)

    assert not is_colored()
    before = window.large._photo
    window.side.toggle_painting()
    wait_for(app, lambda: pane.opened is not None)
    pane.buttons["whole"].invoke()
    wait_for(app, lambda: not pane.canvas.is_busy)
    keys(pane, "<Escape>")
    wait_for(app, is_colored)
    wait_for(app, lambda: window.large._photo is not before and colored(window, window.large._photo))
    window.caption.step("undo")
    wait_for(app, lambda: not window.view.items[0].mask and not colored(window, window.large._photo))
