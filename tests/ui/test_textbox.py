"""The text box leaves no timer behind and does not stop the wheel."""

import customtkinter as ctk
import pytest


def timers(app) -> set[str]:
    """The names of pending timer handlers."""
    call, split = app.tk.call, app.tk.splitlist
    return {split(call("after", "info", timer))[0] for timer in split(call("after", "info"))}


def test_a_destroyed_text_box_has_no_timer_left(app):
    from modules.ui.widgets.Textbox import Textbox

    for wait in (False, True):
        before = timers(app)
        box = Textbox(app)
        if wait:  # until its timer has been rescheduled
            app.after(300, app.quit)
            app.mainloop()
        box.destroy()
        left = timers(app) - before
        assert not [script for script in left if "check_if_scrollbars_needed" in script or "lambda" in script]


def test_scrollbars_come_with_the_text(app, wait_for):
    from modules.ui.widgets.Textbox import Textbox

    box = Textbox(app, height=60)
    box.place(x=0, y=0)
    box.insert("1.0", "line\n" * 100)
    wait_for(app, box._y_scrollbar.winfo_ismapped)


@pytest.mark.parametrize(("num_lines", "scrolls_page"), [(1, True), (100, False)])
def test_the_wheel_scrolls_the_page_over_a_text_that_is_seen_whole(app, settle, num_lines, scrolls_page):
    from modules.ui.widgets.Textbox import Textbox

    page = ctk.CTkScrollableFrame(app.content, width=300, height=200)
    page.place(x=0, y=0)
    box = Textbox(page, height=100)
    box.pack()
    ctk.CTkFrame(page, height=2000).pack()
    box.insert("1.0", "line\n" * num_lines)
    settle(app)
    turn = {"x": 10, "y": 10} if app.tk.call("tk", "windowingsystem") == "x11" else {"x": 10, "y": 10, "delta": -120}
    box._textbox.event_generate("<Button-5>" if "delta" not in turn else "<MouseWheel>", **turn)
    settle(app)
    assert (page._parent_canvas.yview()[0] > 0) == scrolls_page
