"""In a low window images keep their room: toolbars fold, and the caption moves beside the image."""

from __future__ import annotations

import tkinter

import customtkinter as ctk
import pytest
from PIL import Image

from modules.ui.models.DatasetView import LookAlike
from modules.ui.models.MaskerChoices import WAYS
from modules.ui.widgets.FoldingRow import FoldingRow
from tests.ui.test_layout import find_faults

LEAST = 0.45  # of the window's height, of an image


@pytest.fixture
def window(app, tmp_path, show_dataset):
    folder = tmp_path / "foxes"
    folder.mkdir()
    for number in range(3):
        Image.new("RGB", (400, 300), (40, 120, 60 * number)).save(folder / f"{number}.png")
    return show_dataset(app, folder)


@pytest.mark.parametrize(("scale", "size"), [(1.5, "1024x700"), (1.0, "1240x765"), (1.0, "1024x755")])
def test_the_image_has_nearly_half_of_the_height_and_nothing_is_cut(window, settle, wait_for, scale, size):
    app, side = window.app, window.side
    app.theme.set_scale(scale)
    tkinter.Wm.geometry(window, size)
    settle(app)

    def check(canvas) -> None:
        settle(app)
        assert canvas.winfo_height() >= LEAST * window.winfo_height()
        assert not find_faults(window)

    check(side.large)
    side.toggle_painting()
    wait_for(app, lambda: side.masks.opened is not None)
    side.masks._choose("Model")
    side.masks.bar.way.set(WAYS["words"].label)
    side.masks.bar._choose_way()
    check(side.masks.canvas)
    side.toggle_cropping()
    wait_for(app, lambda: side.crops.frame is not None)
    check(side.crops.canvas)
    if side._is_low:
        assert not window.bar.winfo_viewable()
        window.bar.focus_search()
        settle(app)
        assert window.bar.winfo_viewable()  # until editing ends
    side.end_editing()
    check(side.large)
    assert window.bar.winfo_viewable()
    assert side.paint_button.winfo_viewable()
    group = [LookAlike(item.path, 0.8, 0.5) for item in window.view.items]
    window._show_duplicates(window.view.take_groups([group]), True)
    window.compare_duplicates()
    settle(app)
    cells = side.groups.cells
    assert cells.cell_size()[1] <= cells.shown_size[1]  # one is seen whole
    assert cells.cell_size()[1] - cells._text_height >= app.theme.scaled(150)


def test_what_is_written_below_and_beside_the_image_does_not_change_its_width(window, settle):
    """Two wrapped texts that take room from each other would be laid out for ever, and the window would not answer."""
    app, side = window.app, window.side
    app.theme.set_scale(1.5)
    tkinter.Wm.geometry(window, "1024x700")
    settle(app)
    widths = set()
    for about, beside in (
        ("", ""),
        ("a name " * 3, ""),
        ("a name " * 12, "51 of 30 tokens " * 5),
        ("", "51 of 30 tokens " * 5),
    ):
        side.details.configure(text=about)
        side.caption._state.configure(text=beside)
        settle(app)
        widths.add(side.large.winfo_width())
    assert len(widths) == 1


def test_the_buttons_of_a_caption_leave_room_to_it(window, settle):
    """In four rows the last one was below the window, once a second row of filters was there."""
    window.app.theme.set_scale(1.5)
    tkinter.Wm.geometry(window, "1024x700")
    settle(window.app)
    assert len({button.winfo_y() for button in window.side.caption.buttons.values()}) == 3


def test_a_wide_window_has_room_for_two_thumbnails_side_by_side(window, settle):
    window.app.theme.set_scale(1.0)
    tkinter.Wm.geometry(window, "1024x700")
    settle(window.app)
    assert window.side._is_low
    assert window.cells.num_columns() == 2


def test_what_does_not_fit_into_a_row_is_in_its_menu(app, settle):
    top = ctk.CTkToplevel(app)
    frame = ctk.CTkFrame(top)
    frame.pack(fill="x")
    pressed: list[str] = []
    names = ("Undo", "Feather", "Invert", "Done")
    buttons = [ctk.CTkButton(frame, text=one, width=90, command=lambda one=one: pressed.append(one)) for one in names]
    row = FoldingRow(frame, buttons, app, lambda: buttons[3:])
    buttons[2].configure(state="disabled")
    top.geometry("400x100")
    settle(app)
    assert not row.folded
    assert not row.more.winfo_viewable()
    top.geometry("260x100")
    settle(app)
    assert row.folded == buttons[1:3]
    assert row.more.winfo_viewable()
    menu = row.make_menu()
    assert [menu.entrycget(number, "label") for number in range(2)] == ["Feather", "Invert"]
    assert [menu.entrycget(number, "state") for number in range(2)] == ["normal", "disabled"]
    menu.invoke(0)
    assert pressed == ["Feather"]
    top.destroy()
