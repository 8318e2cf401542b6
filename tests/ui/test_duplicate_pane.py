"""Images that look alike are compared in the dataset window, as a person does it with keys and clicks."""

import json

import pytest
from PIL import Image

from modules.ui.models.DatasetView import LookAlike
from modules.ui.models.duplicate_groups import why

GROUPS = (("a0", "a1"), ("b0", "b1", "b2"))


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "foxes"
    path.mkdir()
    for number, name in enumerate(("a0", "a1", "b0", "b1", "b2", "c")):
        Image.new("RGB", (90 - 5 * number, 60), (40 * number, 100, 50)).save(path / f"{name}.png")
        (path / f"{name}.txt").write_text(f"fox, {name}", encoding="utf-8")
    return path


@pytest.fixture
def window(app, folder, show_dataset):
    return show_dataset(app, folder)


@pytest.fixture
def pane(app, window, folder, wait_for):
    """The comparison, opened by its key, of groups that were found."""
    assert window.cells.selection.current == 0
    keys(window.cells.canvas, "<d>")
    assert not window.side.is_comparing
    assert "No images look alike" in window._notice
    window._show_duplicates(
        window.view.take_groups(
            [[LookAlike(str(folder / f"{name}.png"), 0.8 - 0.1 * n, 1.0) for n, name in enumerate(g)] for g in GROUPS]
        ),
        True,
    )
    keys(window.cells.canvas, "<d>")
    pane = window.side.groups
    wait_for(app, lambda: pane.canvas.winfo_width() > 100 and pane.cells.shown_size[0] > 100)
    app.update()
    return pane


def keys(canvas, *names: str) -> None:
    canvas.focus_force()
    for name in names:
        canvas.event_generate(name)
        canvas.update()


def names(pane) -> list[str]:
    return [item.path_below[:-4] for item in pane.cells.members]


def left_out(folder) -> list[str]:
    path = folder / "image_settings.json"
    return sorted(name[:-4] for name in json.loads(path.read_text())["images"]) if path.exists() else []


def test_return_keeps_the_best_one_leaves_the_others_out_and_goes_on_and_undo_takes_it_back(
    app, window, pane, folder, wait_for
):
    assert (pane.group, names(pane), pane.cells.chosen) == (1, ["a0", "a1"], 0)
    assert why(pane.cells.members, 0) == "Best: sharper, more pixels"
    assert why(pane.cells.members, 1) == "Worse: less sharp, fewer pixels"
    keys(pane.canvas, "<Return>")
    assert (pane.group, names(pane)) == (2, ["b0", "b1", "b2"])
    assert window.cells.selection.in_order == [2]  # the window goes with it
    wait_for(app, lambda: left_out(folder) == ["a1"])
    keys(pane.canvas, "<Right>", "<Return>")
    wait_for(app, lambda: left_out(folder) == ["a1", "b0", "b2"])
    wait_for(app, lambda: "last group" in window._notice)
    keys(pane.canvas, "<Control-z>")
    wait_for(app, lambda: left_out(folder) == ["a1"])
    wait_for(app, lambda: window.view.counts()["left_out"] == 1)
    keys(pane.canvas, "<Escape>")
    assert not window.side.is_comparing


def test_a_click_chooses_another_one_and_groups_are_passed_without_a_change(app, window, pane, folder, wait_for):
    x, y = pane.cells.corner_of(1)
    pane.canvas.event_generate("<Button-1>", x=x + 20, y=y + 20)
    app.update()
    assert (pane.cells.chosen, window.cells.selection.current) == (1, 1)
    keys(pane.canvas, "<Next>", "<Next>", "<p>")
    assert (pane.group, left_out(folder)) == (1, [])
    keys(pane.canvas, "<n>", "<p>", "<Right>", "<Return>", "<p>")
    wait_for(app, lambda: left_out(folder) == ["a0"])
    wait_for(app, lambda: window.view.counts()["left_out"] == 1)
    keys(pane.canvas, "<n>", "<p>")
    assert pane.cells.chosen == 1  # what was kept


def test_an_image_without_a_group_is_said_to_have_none(app, window, pane):
    window.bar.choose("all")
    window.cells.choose(5)
    app.update()
    assert (pane.group, names(pane)) == (0, [])
    assert pane.buttons["keep"].cget("state") == "disabled"
    keys(pane.canvas, "<Next>")
    assert pane.group == 1
