"""Messages over the page."""

import pytest

from modules.ui.widgets.form import find_field


def box_of(widget) -> tuple[int, int, int, int]:
    x, y = widget.winfo_rootx(), widget.winfo_rooty()
    return x, y, x + widget.winfo_width(), y + widget.winfo_height()


def overlap(one, other) -> bool:
    (left, top, right, bottom), (x, y, far, low) = box_of(one), box_of(other)
    return left < far and x < right and top < low and y < bottom


@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_a_message_moves_nothing_and_covers_no_button_of_the_bar(app, settle, scale):
    app.theme.set_scale(scale)
    settle(app)
    before = box_of(app.content), box_of(app.bottom_bar)
    app.show_message("word " * 60, "error")
    settle(app)
    assert (box_of(app.content), box_of(app.bottom_bar)) == before
    assert overlap(app.banner, app.content)
    assert not overlap(app.banner, app.bottom_bar)
    assert app.banner.winfo_height() >= app.banner.winfo_reqheight()


def test_a_later_message_takes_no_earlier_error_away_and_none_is_said_twice(app):
    for text in ("broken", "broken", "saved"):
        app.show_message(text, "info" if text == "saved" else "error")
    assert app.banner.texts == ["broken", "saved"]
    for text in ("one", "two"):
        app.show_message(text, "warning")
    assert app.banner.texts == ["saved", "one", "two"]
    app.banner.close("one")
    assert app.banner.texts == ["saved", "two"]


def test_a_message_is_closed_with_the_button_beside_it_and_information_goes_by_itself(app, wait_for, monkeypatch):
    monkeypatch.setattr("modules.ui.widgets.Notices.INFO_MS", 1)
    app.show_message("broken", "error")
    app.show_message("saved")
    wait_for(app, lambda: app.banner.texts == ["broken"])
    label, close = app.banner._rows[-1]
    assert label.cget("text") == "broken"
    close.invoke()
    assert not app.banner.winfo_manager()


def test_a_message_is_not_over_the_field_in_use(app, settle):
    tab = app.open_tab("training")
    settle(app)
    app.show_message("word " * 60, "error")
    settle(app)
    bottom = app.banner.winfo_rooty()
    entries = [find_field(tab, path).focus_widget() for path in ("epochs", "optimizer.learning_rate", "ema.decay")]
    page = tab.page._parent_canvas
    for entry in (one for one in entries if one.winfo_ismapped()):
        page.yview_moveto(0)
        app.update()
        below = entry.winfo_rooty() - page.winfo_rooty() - page.winfo_height() + entry.winfo_height()
        page.yview_moveto(max(0, below) / tab.page.winfo_height())
        app.update()
        entry.focus_force()
        settle(app)
        assert not overlap(app.banner, entry)
    app.tab_bar.focus_on("training")
    settle(app)
    assert app.banner.winfo_rooty() == bottom
