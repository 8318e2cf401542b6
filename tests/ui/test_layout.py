"""Nothing in the window is cut off or overlaps, at any scale and down to the minimum size."""

from __future__ import annotations

import json
import tkinter
from collections.abc import Iterator
from itertools import combinations
from tkinter import ttk

import customtkinter as ctk
import pytest

from modules.ui.cards.Card import Card
from modules.ui.OpeningWindow import MIN_SIZE, TABS
from modules.ui.widgets.dialogs import open_window, set_size
from modules.ui.widgets.fitting import cut_middle, cut_text
from modules.ui.widgets.Notices import Notices
from modules.ui.windows.CrashReportWindow import CrashReportWindow
from modules.ui.windows.MultiNodeWindow import MultiNodeWindow
from tests.support import shown_run
from tests.support.fake_nvml import put_gpus

SLACK = 3  # pixels allowed for rounding
TEXTS = (ctk.CTkLabel, ctk.CTkButton, ctk.CTkSwitch, ctk.CTkCheckBox, ctk.CTkSegmentedButton)
LEAVES = (*TEXTS, ctk.CTkOptionMenu, ctk.CTkEntry, ctk.CTkTextbox, ctk.CTkProgressBar, ttk.Treeview)


def find_faults(window: tkinter.Misc) -> list[str]:
    leaves = list(leaves_in(window))
    assert len(leaves) >= 4
    cut = [f"{describe(leaf)} is cut" for leaf in leaves if is_cut(leaf)]
    return cut + [fault for leaf in leaves for fault in reaches_out(leaf)] + overlaps(leaves)


def leaves_in(widget: tkinter.Misc) -> Iterator[tkinter.Misc]:
    """The visible widgets, without the inner parts of composite ones."""
    for child in widget.winfo_children():
        if isinstance(child, (tkinter.Toplevel, tkinter.Menu)) or not child.winfo_ismapped():
            continue
        if isinstance(child, LEAVES):
            yield child
        else:
            yield from leaves_in(child)


def is_cut(widget: tkinter.Misc) -> bool:
    """Whether a widget has less space than it requests; texts cut with an ellipsis request only what they have."""
    if not isinstance(widget, TEXTS):
        return False
    width, height = widget.winfo_width() + SLACK, widget.winfo_height() + SLACK
    return width < widget.winfo_reqwidth() or height < widget.winfo_reqheight()


def box_of(widget: tkinter.Misc) -> tuple[int, int, int, int]:
    """Left, top, right and bottom in screen coordinates."""
    x, y = widget.winfo_rootx(), widget.winfo_rooty()
    return x, y, x + widget.winfo_width(), y + widget.winfo_height()


def frames_around(widget: tkinter.Misc) -> list[tkinter.Misc]:
    """The enclosing frames from the inside out, up to the window, the scrollable page or the messages, which may lie
    over the page."""
    frames = [widget.master]
    while not isinstance(frames[-1], (tkinter.Toplevel, tkinter.Tk, ctk.CTkScrollableFrame, Notices)):
        frames.append(frames[-1].master)
    return frames


def reaches_out(leaf: tkinter.Misc) -> list[str]:
    left, top, right, bottom = box_of(leaf)
    for frame in frames_around(leaf):
        outer_left, outer_top, outer_right, outer_bottom = box_of(frame)
        beyond = max(outer_left - left, right - outer_right, outer_top - top, bottom - outer_bottom)
        if beyond > SLACK:
            return [f"{describe(leaf)} reaches {beyond} pixels out of {frame}"]
    return []


def overlaps(leaves: list[tkinter.Misc]) -> list[str]:
    """Overlapping pairs of widgets that scroll together."""
    seen = [(leaf, frames_around(leaf)[-1], box_of(leaf)) for leaf in leaves]
    found = []
    for (one, its_page, box), (other, page, other_box) in combinations(seen, 2):
        width = min(box[2], other_box[2]) - max(box[0], other_box[0])
        height = min(box[3], other_box[3]) - max(box[1], other_box[1])
        if its_page is page and width > SLACK and height > SLACK:
            found.append(f"{describe(one)} and {describe(other)} overlap by {width} x {height}")
    return found


def describe(leaf: tkinter.Misc) -> str:
    text = leaf.cget("text") if isinstance(leaf, (ctk.CTkLabel, ctk.CTkButton)) else ""
    return f"{type(leaf).__name__} {text!r} ({str(leaf)[-50:]})"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shown")
    shown_run.make_workspace(folder)
    return folder


@pytest.fixture
def open_at(make_app, workspace, tmp_path, monkeypatch, wait_for):
    """`open_at(scale)`: a window of minimum size with a fake run on eight GPUs, a problem and changed settings."""
    put_gpus(monkeypatch, shown_run.busy_gpus())
    monkeypatch.chdir(workspace)

    def make(scale):
        state = tmp_path / "state"
        state.mkdir()
        size = "{}x{}".format(*MIN_SIZE)
        (state / "window.json").write_text(json.dumps({"scale": scale, "geometry": size, "show_all": True}))
        app = make_app(state)
        app.settings.load_file(shown_run.SETTINGS_FILE)
        app.settings.set("optimizer.learning_rate", "a number that is none at all")
        app.settings.set("distributed_backend", "nccl")
        app.run.attach("workspace/demo")
        wait_for(app, lambda: app.run.state.step and app.devices.machine is not None)
        return app

    return make


@pytest.fixture
def small_app(app, settle):
    set_size(app, "400x300", (100, 100))
    settle(app)
    return app


def test_what_is_cut_is_found(small_app):
    assert find_faults(small_app)


@pytest.mark.parametrize("scale", [0.8, 1.0, 1.5, 2.0])
def test_nothing_is_cut_or_overlaps_on_any_tab(open_at, settle, scale):
    app = open_at(scale)
    faults = {}
    for tab in TABS:
        app.open_tab(tab)
        settle(app)
        faults[tab] = find_faults(app)
    assert faults == {tab: [] for tab in TABS}


def test_windows_fit_on_the_screen_at_the_largest_scale(open_at, settle):
    app = open_at(2.0)
    faults = {}
    app.settings.set("num_nodes", 3)
    for kind, *arguments in ((MultiNodeWindow,), (CrashReportWindow, "workspace/larger-batch")):
        window = open_window(app, kind, *arguments)
        settle(app)
        assert window.winfo_width() <= app.winfo_screenwidth()
        assert window.winfo_height() <= app.winfo_screenheight()
        faults[kind.__name__] = find_faults(window)
    assert faults == {name: [] for name in faults}


@pytest.mark.parametrize("scale", [0.8, 1.25])
def test_the_window_opens_in_the_size_it_was_left_in(make_app, tmp_path, scale):
    (tmp_path / "window.json").write_text(json.dumps({"scale": scale, "geometry": "1000x700"}))
    app = make_app(tmp_path)
    assert (app.winfo_width(), app.winfo_height()) == (1000 * scale, 700 * scale)


@pytest.mark.parametrize("opened", ["crash report", "preset"])
def test_a_new_window_is_seen_in_its_place_only(app, settle, opened):
    settle(app)
    seen = []
    app.bind_class("Toplevel", "<Map>", lambda event: seen.append(event.widget.winfo_geometry()), add="+")
    window = (
        open_window(app, CrashReportWindow, "workspace/larger-batch")
        if opened == "crash report"
        else app.top_bar.choose_preset()
    )
    settle(app)
    assert seen == [window.winfo_geometry()]
    middle = window.winfo_rootx() + window.winfo_width() // 2
    assert middle == pytest.approx(app.winfo_rootx() + app.winfo_width() // 2, abs=SLACK)
    assert window.winfo_rooty() > app.winfo_rooty()


def test_a_change_of_the_scale_keeps_the_window_on_the_screen_and_what_is_hidden_hidden(app, settle):
    app.open_tab("dataset")
    settle(app)
    shown = {path: field.label.winfo_ismapped() for path, field in fields_of(app).items()}
    assert not all(shown.values())
    for scale in (2.0, 1.0):
        app.theme.set_scale(scale)
        settle(app)
        assert app.winfo_width() <= app.winfo_screenwidth()
        assert [name for name, tab in app.tabs.items() if tab.winfo_ismapped()] == ["dataset"]
        assert {path: field.label.winfo_ismapped() for path, field in fields_of(app).items()} == shown


def fields_of(app):
    forms = [card.form for card in app.tabs["dataset"].page.cards.values() if hasattr(card, "form")]
    return {path: field for form in forms for path, field in form.fields.items()}


def test_a_text_is_cut_where_its_room_ends():
    assert cut_text("abcdef", 6, len) == "abcdef"
    assert cut_text("abcdef", 5, len) == "abcd…"
    assert cut_text("abcdef", 0, len) == "…"


def test_a_name_that_is_cut_keeps_its_end():
    names = [cut_middle(f"digits-rank=8-learning_rate={rate}", 14, len) for rate in ("1e-3", "2e-3")]
    assert names == ["digits-…e=1e-3", "digits-…e=2e-3"]
    assert [cut_middle("abcdef", width, len) for width in (6, 2, 0)] == ["abcdef", "a…", "…"]


def test_a_second_window_of_a_kind_is_the_first_one(app):
    first = open_window(app, MultiNodeWindow)
    assert open_window(app, MultiNodeWindow) is first
    report = open_window(app, CrashReportWindow, "one")
    other = open_window(app, CrashReportWindow, "other")
    assert not report.winfo_exists()
    assert other.winfo_exists()
    assert first.winfo_exists()


@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_a_long_path_never_widens_the_card_that_it_is_wrapped_to(app, settle, scale):
    app.theme.set_scale(scale)
    holder = tkinter.Frame(app)
    card = Card(holder, app, "Title")
    card.pack(fill="both", expand=True)
    card.add_note(1).configure(text="The folder /" + "x" * 400 + " is gone.")
    for width in range(400, 420):  # wherever a line breaks
        holder.place(x=0, y=0, width=width, height=300)
        settle(app)
        assert card.winfo_reqwidth() < card.winfo_width() == width
