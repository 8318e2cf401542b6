"""The text box leaves no timer behind."""


def timers(app) -> set[str]:
    """The names of pending timer handlers."""
    call, split = app.tk.call, app.tk.splitlist
    return {split(call("after", "info", timer))[0] for timer in split(call("after", "info"))}


def test_a_destroyed_text_box_has_no_timer_left(make_app):
    from modules.ui.widgets.Textbox import Textbox

    app = make_app()  # on its home tab, which has no text box with a timer of its own
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
