"""A page that scrolls: its content stays within reach, and the wheel works over everything."""

import customtkinter as ctk
import pytest

from modules.ui.widgets.Page import Page
from modules.ui.widgets.Textbox import Textbox
from modules.ui.window_system import wheel_events


@pytest.fixture
def app(shared_app):
    return shared_app


def turn_wheel(widget, is_down: bool = True) -> None:
    names = wheel_events(widget)
    if len(names) == 2:
        widget.event_generate(names[is_down], x=10, y=10)
    else:
        widget.event_generate(names[0], x=10, y=10, delta=-120 if is_down else 120)


@pytest.fixture
def page(app, settle):
    """A page in which ten times more than fits is scrolled to its end."""
    page = Page(app.content, width=300, height=200)
    page.place(x=0, y=0)
    page.content = ctk.CTkFrame(page, height=2000)
    page.content.pack()
    settle(app)
    page._parent_canvas.yview_moveto(1.0)
    settle(app)
    assert page._parent_canvas.yview()[1] == 1.0
    return page


@pytest.mark.parametrize("is_hidden", [False, True])
def test_content_that_shrinks_to_above_the_visible_part_comes_back_into_sight(app, page, settle, is_hidden):
    if is_hidden:
        page.place_forget()
        settle(app)
    page.content.configure(height=100)
    settle(app)
    if is_hidden:
        page.place(x=0, y=0)
        settle(app)
    assert page._parent_canvas.yview() == (0.0, 1.0)
    assert page.content.winfo_viewable()
    assert page.content.winfo_rooty() >= page._parent_canvas.winfo_rooty()


def test_a_page_that_shrinks_a_little_stays_at_its_end(app, page, settle):
    page.content.configure(height=1500)
    settle(app)
    assert page._parent_canvas.yview()[1] == 1.0
    assert page._parent_canvas.canvasy(0) > 0


def test_the_wheel_over_a_window_that_tk_made_itself_is_left_to_that_window(app, page, settle, faults):
    app.tk.eval("toplevel .dialog; frame .dialog.list -width 100 -height 100; pack .dialog.list; update")
    before = page._parent_canvas.yview()
    for name in wheel_events(app):
        delta = "" if name[1:-1].startswith("Button") else "-delta 120"
        app.tk.eval(f"event generate .dialog.list {name} {delta}")
    settle(app)
    app.tk.eval("destroy .dialog")
    assert not faults
    assert page._parent_canvas.yview() == before


def test_every_page_of_the_window_is_one_of_these(app, settle):
    from modules.ui.OpeningWindow import TABS

    def pages(widget):
        for child in widget.children.values():
            if isinstance(child, ctk.CTkScrollableFrame):
                yield child
            yield from pages(child)

    for name in TABS:
        app.open_tab(name)
        settle(app)
    found = list(pages(app))
    assert len(found) >= 5
    assert not [one for one in found if not isinstance(one, Page)]


@pytest.mark.parametrize(("num_lines", "place"), [(1, 0.0), (100, 1.0)])
def test_the_wheel_scrolls_the_page_over_a_text_that_can_not_be_scrolled_further(app, settle, num_lines, place):
    page = Page(app.content, width=300, height=200)
    page.place(x=0, y=0)
    box = Textbox(page, height=100)
    box.pack()
    ctk.CTkFrame(page, height=2000).pack()
    box.insert("1.0", "line\n" * num_lines)
    box._textbox.yview_moveto(place)
    settle(app)
    turn_wheel(box._textbox)
    settle(app)
    scrolled = page._parent_canvas.yview()[0]
    assert scrolled > 0
    turn_wheel(box._textbox, is_down=False)  # the longer text goes back first
    settle(app)
    assert (page._parent_canvas.yview()[0] < scrolled) == (num_lines == 1)


def test_the_wheel_scrolls_a_text_that_can_be_scrolled(app, settle):
    page = Page(app.content, width=300, height=200)
    page.place(x=0, y=0)
    box = Textbox(page, height=100)
    box.pack()
    ctk.CTkFrame(page, height=2000).pack()
    box.insert("1.0", "line\n" * 100)
    settle(app)
    turn_wheel(box._textbox)
    settle(app)
    assert page._parent_canvas.yview()[0] == 0
