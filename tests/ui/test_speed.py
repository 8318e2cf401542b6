"""The reasons for the window's speed, tested without a clock; scripts/benchmark.py ui measures it."""

import gc
import json
import subprocess
import sys
import tkinter
from typing import Any

import pytest

from modules.ui.models.WorkerThreads import WorkerThreads
from modules.ui.OpeningWindow import TABS, OpeningWindow

LOADED = """
import json, sys
from pathlib import Path
from modules.ui.toolkit import load_toolkit

load_toolkit()
from modules.ui.OpeningWindow import TABS, OpeningWindow

def loaded():
    tabs = [name for name, module in TABS.items() if f"modules.ui.tabs.{module}" in sys.modules]
    return {"numpy": "numpy" in sys.modules, "tabs": tabs}

opening = OpeningWindow()
opening.show()
settings = {"pydantic", "yaml", "modules.config.TrainConfig"}.intersection(sys.modules)
drawn = {"is_drawn": opening.is_drawn, "settings": sorted(settings)}
from modules.ui.TrainUI import TrainUI
window = TrainUI.take_over(opening, Path("no-queue"))
window.update_idletasks()
first = loaded()

def look():
    window.quit() if len(loaded()["tabs"]) == len(TABS) else window.after(10, look)

look()
window.mainloop()
later = loaded()
for name in TABS:
    window.open_tab(name)
    window.update()
heavy = sorted({"torch", "diffusers", "transformers", "peft", "matplotlib"} & set(sys.modules))
print(json.dumps({"drawn": drawn, "first": first, "later": later, "heavy": heavy}))
"""


@pytest.fixture(scope="module")
def loaded(display) -> dict[str, Any]:
    """What a window in a process of its own has imported: at first, by itself, and when all tabs have been opened."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_window_is_drawn_before_the_settings_are_imported(loaded):
    assert loaded["drawn"] == {"is_drawn": True, "settings": []}


def test_the_first_page_needs_no_numpy_and_one_tab_and_the_rest_comes_by_itself(loaded):
    assert loaded["first"] == {"numpy": False, "tabs": ["home"]}
    assert loaded["later"] == {"numpy": True, "tabs": list(TABS)}


def test_the_window_loads_no_model_code_on_any_tab(loaded):
    assert loaded["heavy"] == []


def test_keys_and_clicks_before_the_settings_are_there_are_done_once_they_are(make_app, monkeypatch, tmp_path):
    pressed = []
    monkeypatch.setattr("modules.ui.RunControl.RunControl.start", lambda control: pressed.append("F5"))
    monkeypatch.setattr("modules.ui.TrainUI.open_file", lambda page: pressed.append("Help"))
    opening = OpeningWindow(tmp_path / "state")
    assert opening.show()
    opening.tab_bar.buttons["training"].invoke()  # while it is drawn
    assert (opening.tab_bar.selected, opening.focus_force()) == ("training", None)
    opening.event_generate("<F5>", when="tail")
    for key in ("<Control-f>", "<KeyPress-x>", "<KeyRelease-x>"):
        opening.event_generate(key, when="tail")
    for event in ("<Enter>", "<Button-1>", "<ButtonRelease-1>"):
        opening.help_button._canvas.event_generate(event, when="tail")
    window = make_app(take_over=opening)
    assert [name for name, tab in window.tabs.items() if tab.winfo_ismapped()] == ["training"]
    assert (pressed, window.top_bar.search.get()) == (["F5", "Help"], "x")
    assert not window.is_opening


def test_a_window_closed_before_the_settings_are_there_ends(display, tmp_path):
    opening = OpeningWindow(tmp_path / "state")
    opening.after_idle(lambda: opening.tk.call(opening.protocol("WM_DELETE_WINDOW")))
    assert not opening.show()
    again = OpeningWindow(tmp_path / "state")
    again.destroy()
    assert again.first_notice == "", "the state is still locked"


def test_threads_wait_until_the_window_is_drawn_and_its_tab_built(make_app, wait_for, monkeypatch):
    seen, run = [], WorkerThreads.run

    def note(threads, work):
        window = tkinter._default_root
        seen.append((bool(window.winfo_viewable()), window.is_building))
        run(threads, work)

    monkeypatch.setattr(WorkerThreads, "run", note)
    monkeypatch.setattr("modules.ui.RootWindow.UNSEEN_MS", 60_000)  # a busy machine draws the window late
    app = make_app()
    wait_for(app, lambda: len(seen) >= 5)
    assert seen[:5] == [(True, False)] * 5


def test_opening_a_tab_leaves_most_of_it_to_slices(make_app, wait_for):
    app = make_app()
    for name in TABS:
        wait_for(app, lambda: not app.is_building)
        if name not in app.tabs:
            app.open_tab(name)
            assert app.is_building, name


def test_the_benchmark_of_the_window_gives_every_figure(display, tmp_path, monkeypatch, capsys):
    from scripts import benchmark
    from scripts.benchmarks import ui

    sizes = {"STARTS": 1, "ROUNDS": 1, "CONCEPT_PICTURES": 3, "PICTURES": 40, "DATASET": 40, "STEPS": 2000}
    for name, size in sizes.items():
        monkeypatch.setattr(ui, f"NUM_{name}", size)
    monkeypatch.setattr(ui, "PULSE_SECONDS", 0.3)
    monkeypatch.setattr(ui, "DATASET_SECONDS", 0.3)
    monkeypatch.setattr(ui, "tab_names", lambda: ["tools", "general"])
    monkeypatch.setattr(ui, "_environment", lambda folder: None)  # skips compilation
    figures = tmp_path / "figures.json"
    assert benchmark.main(["ui", "--folder", str(tmp_path / "benchmark"), "--json", str(figures)]) == 0
    found = {figure["what"]: figure for figure in json.loads(figures.read_text())["ui"]}
    printed = capsys.readouterr().out.splitlines()
    assert all(any(line.startswith(f"{what}: ") for line in printed) for what in found)
    assert {
        "first paint",
        "first tab, complete",
        "opening tools, demo preset",
        "opening tools, concept of 3 images",
    } <= found.keys()
    assert {"pulse of 10 ms, 99th percentile", "thumbnails, a step of scrolling", "drawing them"} | {
        "dataset window, first screen"
    } <= found.keys()
    assert found["steps dropped"]["value"] == 0
    assert "lowest and highest loss kept" in found["drawing them"]["details"]
    assert not list((tmp_path / "benchmark").glob("run-*")) + list((tmp_path / "benchmark").glob("window-*"))


@pytest.fixture
def nothing_frozen():
    """What the tests have frozen is not, for a while."""
    was_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    yield
    (gc.freeze if was_frozen else gc.unfreeze)()


def test_a_complete_collection_of_garbage_leaves_out_what_is_there_to_stay(
    make_app, wait_for, monkeypatch, nothing_frozen
):
    monkeypatch.setattr("modules.ui.RootWindow.COLLECT_ALL_MS", 10)
    app = make_app()
    wait_for(app, lambda: gc.get_freeze_count() > 10_000)
    app.destroy()
    assert gc.get_freeze_count() == 0  # the next window of this process may be another one


def test_a_window_that_closes_leaves_frozen_what_another_part_of_the_program_has_frozen(make_app, nothing_frozen):
    """As these tests have, for which looking for garbage in all that they import would take a tenth of their time."""
    app = make_app()
    gc.freeze()
    app.destroy()
    assert gc.get_freeze_count() > 10_000
