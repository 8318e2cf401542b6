"""A display for the tests of the window, and the window itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

DISPLAY_SECONDS = 15


@pytest.fixture(scope="session")
def display() -> Iterator[str]:
    """The name of a display: the one there is, or one of Xvfb. Without both the test is skipped, or fails where
    REQUIRE_GUI_TESTS=1 asks for it."""
    if os.name == "nt" or os.environ.get("DISPLAY"):
        yield os.environ.get("DISPLAY", "")
        return
    if shutil.which("Xvfb") is None:
        missing("there is no display, and Xvfb is not installed")
    reading, writing = os.pipe()
    command = ["Xvfb", "-displayfd", str(writing), "-screen", "0", "1920x1200x24", "-nolisten", "tcp"]
    server = subprocess.Popen(command, pass_fds=[writing], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(writing)
    with os.fdopen(reading) as answer:
        number = answer.readline().strip()  # Xvfb writes it when clients can come
    if not number:
        missing("Xvfb did not start")
    os.environ["DISPLAY"] = f":{number}"
    try:
        yield os.environ["DISPLAY"]
    finally:
        del os.environ["DISPLAY"]
        server.terminate()
        server.wait(DISPLAY_SECONDS)


def missing(reason: str) -> None:
    if os.environ.get("REQUIRE_GUI_TESTS") == "1":
        pytest.fail(f"REQUIRE_GUI_TESTS=1, but {reason}")
    pytest.skip(reason)


@pytest.fixture
def make_app(display, tmp_path, monkeypatch) -> Iterator[Callable]:
    """Makes a window: `make_app()`, or `make_app(state_dir)` for one with a last state. What is raised in a callback
    fails the test."""
    from modules.ui.TrainUI import TrainUI

    monkeypatch.chdir(tmp_path)  # the run folders of the demo are relative
    windows, faults = [], []

    def report(window, kind, error, trace) -> None:
        faults.append(error)

    monkeypatch.setattr(TrainUI, "report_callback_exception", report)

    def make(state_dir=None) -> TrainUI:
        window = TrainUI(state_dir)
        windows.append(window)
        window.update()
        return window

    yield make
    for window in windows:
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
    """`wait_for(app, condition)` runs the window until the condition holds; fails after 20 seconds."""

    def wait(app, condition: Callable[[], object], seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "the window did not get there in time"
            app.update()
            time.sleep(0.002)

    return wait


def was_closed(window) -> bool:
    import tkinter

    try:
        return not window.winfo_exists()
    except tkinter.TclError:
        return True
