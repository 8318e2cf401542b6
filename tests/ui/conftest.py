"""A display for the tests of the window, and the window itself."""

from __future__ import annotations

import copy
import functools
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from modules.config.presets import load_preset
from modules.ui.toolkit import load_toolkit
from tests.support.fake_nvml import FakeNvml, real
from tests.support.virtual_screen import missing, virtual_screen
from tests.support.waiting import PATIENCE_SECONDS

load_toolkit()  # before a test imports it: others may have windows open on this machine


@pytest.fixture(scope="session")
def display() -> Iterator[str]:
    """The name of a display: the one there is, or one of Xvfb for each of several workers. Without both the test is
    skipped, or fails where REQUIRE_GUI_TESTS=1 asks for it."""
    shares = "PYTEST_XDIST_WORKER" in os.environ  # and workers must not share a clipboard, nor who has the keys
    if os.name == "nt" or (os.environ.get("DISPLAY") and not shares):
        yield os.environ.get("DISPLAY", "")
        return
    with virtual_screen() as name, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISPLAY", name)
        yield name


@pytest.fixture(scope="module")
def screen() -> Iterator[str]:
    """A screen of its own, also where there is a display, with somebody's mouse and keyboard: for xdotool."""
    if shutil.which("xdotool") is None:
        missing("xdotool is not installed")
    with virtual_screen() as name:
        yield name


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch) -> None:
    """A machine without a GPU and with two cores, whatever this one has. Before the window, which looks at it."""
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(init_error=real.NVML_ERROR_LIBRARY_NOT_FOUND))
    monkeypatch.setattr("modules.machine.Machine.num_cores", lambda: 2)


@pytest.fixture
def faults() -> list[Exception]:
    """What was raised in callbacks of the window, so far."""
    return []


@pytest.fixture
def make_app(display, tmp_path, monkeypatch, faults) -> Iterator[Callable]:
    """Makes a window: `make_app()`, or `make_app(state_dir)` for one with a last state. What is raised in a callback
    fails the test."""
    from customtkinter.windows.widgets.core_rendering import DrawEngine

    from modules.ui.TrainUI import TrainUI

    monkeypatch.chdir(tmp_path)  # the run folders of the demo are relative
    monkeypatch.setattr("modules.ui.models.SettingsModel.load_preset", load_preset_once)
    # Round corners as one shape each, and not of characters, are not as smooth but drawn in two thirds of the time.
    monkeypatch.setattr(DrawEngine, "preferred_drawing_method", "polygon_shapes")
    monkeypatch.setattr("modules.ui.RootWindow.PUMP_MS", 5)  # tests wait for what it brings
    # other tests train meanwhile
    monkeypatch.setattr("modules.ui.models.BackgroundChecks.check_port", lambda *place: [])
    windows = []

    def report(window, kind, error, trace) -> None:
        faults.append(error)

    monkeypatch.setattr(TrainUI, "report_callback_exception", report)

    def make(state_dir=None) -> TrainUI:
        window = TrainUI(state_dir)
        windows.append(window)
        window.update()
        return window

    yield make
    for window in reversed(windows):  # the first one last: tkinter takes it for the fonts of all
        if not was_closed(window):
            window.update()
            window.destroy()
    if faults:
        raise faults[0]


@pytest.fixture
def app(make_app):
    """A window with the demo's settings, which keeps no state."""
    return make_app()


@pytest.fixture
def wait_for(make_app) -> Callable:
    """`wait_for(app, condition)` runs the window until the condition holds; fails where it does not come true."""

    def wait(app, condition: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < end, "the window did not get there in time"
            app.update()
            time.sleep(0.002)

    return wait


@functools.cache
def read_preset(name: str) -> dict:
    return load_preset(name)


def load_preset_once(name: str) -> dict:
    """The values of a preset, whose file is parsed for the first window only."""
    return copy.deepcopy(read_preset(name))


@pytest.fixture
def settle(wait_for) -> Callable:
    """`settle(app)` runs the window until all is built and laid out."""

    def run(app) -> None:
        wait_for(app, lambda: not app.is_building)
        for _ in range(5):  # what is laid out makes others be laid out
            app.winfo_pointerxy()  # asks the display, whose answer comes behind all that it has told before
            app.update()

    return run


def was_closed(window) -> bool:
    import tkinter

    try:
        return not window.winfo_exists()
    except tkinter.TclError:
        return True
