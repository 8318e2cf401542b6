"""The window's shortcuts: each does its action and nothing else, wherever the focus is."""

import tkinter

import customtkinter as ctk
import pytest

from modules.ui import keyboard
from modules.ui.cards.LinksCard import LinksCard
from modules.ui.cards.NodeCheckCard import NodeCheckCard
from modules.ui.models.RunModel import RunModel
from modules.ui.TopBar import TopBar
from modules.ui.widgets.dialogs import open_window
from modules.ui.widgets.form import SettingsForm
from modules.ui.windows.HealthWindow import HealthWindow
from modules.ui.windows.MultiNodeWindow import MultiNodeWindow
from tests.support.waiting import wait_until

ENTRY, PROMPT = "output.name", "sampling.samples.0.prompt"
STATES = {"Shift": 1, "Lock": 2, "Control": 4}
KEYS = (
    "<Control-s>", "<Control-Shift-S>", "<Control-o>", "<Control-z>", "<Control-y>", "<Control-Shift-Z>", "<Control-f>",
    "<Control-Tab>", "<Control-Next>", "<Control-Prior>",
)  # fmt: skip


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """The actions requested from the top bar."""
    done = []
    for name in ("save", "save_as", "choose_preset"):
        monkeypatch.setattr(TopBar, name, lambda bar, name=name: done.append(name))
    return done


@pytest.fixture
def app(asked, make_app):
    return make_app(tab="tools")


@pytest.fixture
def form(app) -> SettingsForm:
    """A form with an entry and a text box, both with text."""
    app.settings.set(ENTRY, "one two")
    app.settings.set(PROMPT, "one two")
    form = SettingsForm(app.content, app, [ENTRY, PROMPT], all_importances=True)
    form.grid(row=0, column=0)
    form.finish()
    app.update()
    return form


def press(widget: tkinter.Misc, *keys: str, caps_lock: bool = False) -> None:
    for key in keys:
        *held, name = key[1:-1].split("-")
        state = sum(STATES[one] for one in held) + STATES["Lock"] * caps_lock
        widget.focus_force()
        widget.update()
        code = keycode(widget, name.lower() if len(name) == 1 else name)
        widget.event_generate("<Key>", keycode=code, state=state)
        widget.update()


def keycode(widget: tkinter.Misc, name: str) -> int:
    """The number of a key: by the name of an upper-case letter Tk would hold Shift too. `widget` has the focus, and
    hears nothing of it."""
    seen: list[int] = []
    tags = widget.bindtags()
    widget.bindtags(("Listener",))
    widget.bind_class("Listener", "<Key>", lambda event: seen.append(event.keycode))

    def is_heard() -> bool:
        widget.focus_force()  # which a window that has just opened may take for itself
        widget.update()
        widget.event_generate(f"<Key-{name}>")
        return bool(seen)

    wait_until(is_heard)
    widget.bindtags(tags)
    return seen[0]


@pytest.mark.parametrize("path", [ENTRY, PROMPT])
def test_the_keys_of_the_window_change_no_text_and_leave_the_cursor_where_it_is(app, form, path):
    app.clipboard_clear()
    app.clipboard_append("pasted")
    app.settings.history.clear()  # else undo would revert the texts
    field = form.fields[path]
    widget = field.focus_widget()
    widget.mark_set("insert", "1.3") if path == PROMPT else widget.icursor(3)
    before = field.read(), widget.index("insert")
    for key in KEYS:
        for caps_lock in (False, True):
            press(widget, key, caps_lock=caps_lock)
            assert (field.read(), widget.index("insert")) == before, (key, caps_lock)


def test_keys_do_what_they_are_for_where_a_person_types_also_with_caps_lock(app, form, asked):
    first = app.settings.get("epochs")
    for path in (ENTRY, PROMPT):
        for caps_lock in (False, True):
            widget = form.fields[path].focus_widget()
            press(widget, "<Control-s>", "<Control-Shift-S>", "<Control-o>", caps_lock=caps_lock)
            assert asked == ["save", "save_as", "choose_preset"], (path, caps_lock)
            asked.clear()
            app.settings.set("epochs", 3)
            press(widget, "<Control-z>", caps_lock=caps_lock)
            assert app.settings.get("epochs") == first
            for redo in ("<Control-y>", "<Control-Shift-Z>"):
                press(widget, redo, caps_lock=caps_lock)
                assert app.settings.get("epochs") == 3, (redo, caps_lock)
                app.settings.undo()
            press(widget, "<Control-f>", caps_lock=caps_lock)
            assert app.focus_get() is app.top_bar.search._entry


def test_other_keys_still_edit_a_text(form):
    field = form.fields[ENTRY]
    entry = field.focus_widget()
    press(entry, "<Control-a>", "<Control-c>", "<End>", "<Control-v>")
    assert field.read() == "one twoone two"
    press(entry, "<Control-a>", "<Control-x>", caps_lock=True)
    assert field.read() == ""


@pytest.mark.parametrize("kind", ["concept", "machines"])
def test_undo_redo_and_save_work_in_the_other_windows_that_edit_the_settings(app, asked, wait_for, kind):
    if kind == "concept":
        app.open_tab("dataset").edit(0)
        window, path = app.tabs["dataset"]._window, "concepts.0.repeats"
        field = window._cards[-1].form
    else:
        window, path = open_window(app, MultiNodeWindow), "num_nodes"
        field = window.form
    field.finish()
    before = app.settings.get(path)
    entry = field.fields[path].focus_widget()
    wait_for(app, entry.winfo_viewable)
    app.settings.set(path, 5)
    press(entry, "<Control-z>")
    assert app.settings.get(path) == before
    press(entry, "<Control-y>")
    assert app.settings.get(path) == 5
    press(entry, "<Control-z>", "<Control-Shift-Z>")
    assert app.settings.get(path) == 5
    press(entry, "<Control-s>")
    assert asked == ["save"]
    press(entry, "<Control-Shift-S>")
    assert asked == ["save", "save_as"]


def find_button(window, text: str) -> ctk.CTkButton:
    for widget in window.winfo_children():
        if isinstance(widget, ctk.CTkButton) and widget.cget("text") == text:
            return widget
        if found := find_button(widget, text):
            return found
    return None


@pytest.mark.parametrize(
    ("tab", "text", "method"),
    [
        ("multi-GPU", "Test communication", (LinksCard, "toggle")),
        ("multi-GPU", "Check nodes", (NodeCheckCard, "toggle")),
        ("dataset", "Check", (HealthWindow, "_toggle")),
        ("sampling", "Sample now", (RunModel, "command")),
        ("backup", "Back up now", (RunModel, "command")),
        ("backup", "Save model now", (RunModel, "command")),
    ],
)
def test_a_double_click_is_one_press(app, settle, monkeypatch, tab, text, method):
    pressed = []
    monkeypatch.setattr(*method, lambda self, *arguments: pressed.append(arguments))
    monkeypatch.setattr("modules.ui.keyboard.DOUBLE_CLICK_SECONDS", 0.0)
    app.open_tab(tab)
    opened = {"Check nodes": MultiNodeWindow, "Check": HealthWindow}
    window = open_window(app, opened[text]) if text in opened else app
    settle(app)
    button = find_button(window, text)
    button.configure(state="normal")  # even without a run
    button.invoke()
    button.invoke()
    assert len(pressed) == 2
    monkeypatch.setattr("modules.ui.keyboard.DOUBLE_CLICK_SECONDS", 60.0)
    button.invoke()
    assert len(pressed) == 2


def test_a_menu_that_is_opened_by_key_starts_at_its_value(app):
    menu = app.top_bar.method
    index = len(menu.cget("values")) - 1
    menu.set(menu.cget("values")[index])
    keyboard.press(menu)
    app.update()
    assert menu._dropdown_menu.index("active") == index
    menu._dropdown_menu.unpost()


def test_the_ring_around_a_button_with_the_focus_follows_its_size(app, settle):
    button = ctk.CTkButton(app.content, text="Close", width=60)
    button.grid(row=0, column=0)
    settle(app)
    button._canvas.focus_force()
    app.update()
    button.configure(width=140)
    settle(app)
    assert button._canvas.coords(keyboard.RING)[2] == button._canvas.winfo_width() - 2


def test_arrows_move_a_slider_that_tab_leads_to(app):
    told: list[float] = []
    slider = ctk.CTkSlider(app.content, from_=0, to=10, command=told.append)
    slider.grid(row=0, column=0)
    slider.set(5)
    app.update()
    slider._canvas.focus_force()
    assert slider._canvas.cget("takefocus") == "1"
    press(slider._canvas, "<Right>", "<Up>", "<Left>", "<Left>", "<Down>")
    assert told == [5.5, 6, 5.5, 5, 4.5]


def test_the_tabs_are_one_stop_of_the_tab_key_and_arrows_go_on_from_there(app):
    stops = [name for name, button in app.tab_bar.buttons.items() if button._canvas.cget("takefocus") == "1"]
    assert stops == ["tools"]
    canvas = app.tab_bar.buttons["tools"]._canvas
    canvas.focus_force()
    app.update()
    canvas.event_generate("<Right>")
    app.update()
    assert (app.tab_bar.selected, app.focus_get()) == ("queue", app.tab_bar.buttons["queue"]._canvas)
    assert app.tab_bar.buttons["queue"]._canvas.find_withtag(keyboard.RING)
    assert [name for name, button in app.tab_bar.buttons.items() if button._canvas.cget("takefocus") == "1"] == [
        "queue"
    ]


def test_a_tab_that_is_clicked_has_no_focus_ring(app):
    app.focus_force()
    app.update()
    button = app.tab_bar.buttons["general"]
    for event in ("<Enter>", "<Button-1>", "<ButtonRelease-1>"):
        button._text_label.event_generate(event)
        app.update()
    assert (app.tab_bar.selected, app.focus_get()) == ("general", button._canvas)
    assert not button._canvas.find_withtag(keyboard.RING)


def test_a_menu_marks_the_current_value(app, monkeypatch):
    monkeypatch.setattr(keyboard, "_open_plain", lambda menu: None)
    menu = ctk.CTkOptionMenu(app, values=["one", "two"])
    menu.set("two")
    keyboard.press(menu)
    labels = [menu._dropdown_menu.entrycget(number, "label") for number in range(2)]
    assert [keyboard.MARK in label for label in labels] == [False, True]
    assert [label.strip(f" {keyboard.MARK}") for label in labels] == ["one", "two"]
