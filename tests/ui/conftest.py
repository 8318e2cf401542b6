"""Fixtures: a display for the tests of the window, and the window itself."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import itertools
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modules.config.presets import ROOT, load_preset
from modules.machine.Machine import read_machine
from modules.ui.toolkit import load_toolkit
from tests.support.fake_nvml import FakeNvml, real
from tests.support.virtual_screen import missing, virtual_screen
from tests.support.waiting import PATIENCE_SECONDS

DEMO = ROOT / "resources" / "demo"
COLLECT_AFTER = 4  # tests with a window
_numbers = itertools.count(1)
_shared: list[tuple] = []  # windows that outlive a test, each with its first settings

load_toolkit()  # before a test imports CustomTkinter: other windows may be open on this machine


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[object]:
    """Collect windows that tests have closed once nothing refers to them, here in their thread, as RootWindow wants:
    it takes 50 ms, so not after each of them, but before tests of other folders. While one is open, only here."""
    result = yield
    is_last = nextitem is None or nextitem.path.parent != item.path.parent
    if not gc.isenabled() and (is_last or next(_numbers) % COLLECT_AFTER == 0):
        gc.collect()
        if not _shared:
            gc.enable()
    return result


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Within each module, begin with the tests that make windows of their own: each change of colors or scale would
    also draw the shared window, with all of its tabs."""
    first: dict[Path, int] = {}
    for number, item in enumerate(items):
        first.setdefault(item.path, number)
    items.sort(key=lambda item: (first[item.path], "shared_app" in getattr(item, "fixturenames", ())))


@pytest.fixture(scope="session")
def display() -> Iterator[str]:
    """The name of a display: the existing one, or Xvfb, separate for each xdist worker. Without either the test is
    skipped, or fails if REQUIRE_GUI_TESTS=1 is set."""
    shares = "PYTEST_XDIST_WORKER" in os.environ  # workers must not share the clipboard or the focus
    if os.name == "nt" or (os.environ.get("DISPLAY") and not shares):
        yield os.environ.get("DISPLAY", "")
        return
    with virtual_screen() as name, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISPLAY", name)
        yield name


@pytest.fixture(scope="module")
def screen() -> Iterator[str]:
    """A separate screen for xdotool, even if there is a display, whose mouse and keyboard are the user's."""
    if shutil.which("xdotool") is None:
        missing("xdotool is not installed")
    with virtual_screen() as name:
        yield name


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch) -> None:
    """Simulate a machine without a GPU and with two cores, before the window examines it."""
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(init_error=real.NVML_ERROR_LIBRARY_NOT_FOUND))
    monkeypatch.setattr("modules.machine.Machine.num_cores", lambda: 2)


@pytest.fixture
def faults() -> list[Exception]:
    """The exceptions raised in callbacks of the window so far."""
    return []


@pytest.fixture
def make_app(display, tmp_path, monkeypatch, faults) -> Iterator[Callable]:
    """A function that creates a window: `make_app()`, or `make_app(state_dir)` for one with saved state. An exception
    in a callback fails the test. tab: the one in front, in place of the one that a user sees first. take_over: the
    window that it takes the place of."""
    with window_maker(tmp_path, monkeypatch, faults) as make:
        yield make
    if faults:
        raise faults[0]


@contextlib.contextmanager
def window_maker(folder: Path, monkeypatch: pytest.MonkeyPatch, faults: list[Exception]) -> Iterator[Callable]:
    """What `make_app` gives. folder: the current one. faults: gets the exceptions in callbacks."""
    from customtkinter.windows.widgets.core_rendering import DrawEngine

    from modules.ui.models.Preferences import Preferences
    from modules.ui.TrainUI import TrainUI

    monkeypatch.chdir(folder)  # the run folders of the demo are relative
    monkeypatch.setattr("modules.ui.models.SettingsModel.load_preset", load_preset_once)
    monkeypatch.setattr("modules.ui.models.BackgroundChecks.count_pictures", count_demo_once)
    # Corners drawn as polygons rather than characters are less smooth but take a third less time.
    monkeypatch.setattr(DrawEngine, "preferred_drawing_method", "polygon_shapes")
    # presets name models of the Hub, which nobody is to be asked about; test_base_model_window.py has a server for it
    monkeypatch.setattr("modules.ui.models.BackgroundChecks.HUB_MS", 10**8)
    monkeypatch.setattr("modules.ui.RootWindow.PUMP_MS", 5)  # tests wait for its results
    # A window that has been open for so long also unfreezes, when it closes, what tests/conftest.py has frozen: from
    # then on, each collection of garbage would look through all libraries.
    monkeypatch.setattr("modules.ui.RootWindow.COLLECT_ALL_MS", 10**8)
    # trainings of other tests may use the port
    monkeypatch.setattr("modules.ui.models.BackgroundChecks.first_free_port", lambda port: port)
    windows = []

    def report(window, kind, error, trace) -> None:
        faults.append(error)

    monkeypatch.setattr(TrainUI, "report_callback_exception", report)

    queue = folder / "workspace" / ".queue"

    def make(state_dir=None, tab="", take_over=None) -> TrainUI:
        with pytest.MonkeyPatch.context() as patch:
            if tab:
                patch.setattr(Preferences, "load", lambda path: Preferences(path=path, tab=tab))
            window = TrainUI.take_over(take_over, queue) if take_over else TrainUI(state_dir, queue)
        windows.append(window)
        window.update()
        return window

    yield make
    for window in reversed(windows):  # the first one last: tkinter uses it for all fonts
        if not was_closed(window):
            window.update()
            window.destroy()


@pytest.fixture
def app(make_app):
    """A window with the demo's settings, which saves no state. In front is a tab that takes a fifth of the time of the
    home tab, which reads all presets, too."""
    return make_app(tab="tools")


@pytest.fixture(scope="module")
def shared_windows(request, display, tmp_path_factory) -> Iterator[Callable]:
    """A function that gives a window as `app`, the same for all tests of a module until one fails, or closes it."""
    faults: list[Exception] = []  # between tests: `make_app` has those of each test
    num_failed = 0
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setitem(sys.modules, "pynvml", FakeNvml(init_error=real.NVML_ERROR_LIBRARY_NOT_FOUND))
        make = stack.enter_context(window_maker(tmp_path_factory.mktemp("shared"), patch, faults))
        stack.callback(_shared.clear)

        def get(session: pytest.Session):
            nonlocal num_failed
            if not _shared or was_closed(_shared[-1][0]) or session.testsfailed > num_failed:
                num_failed = session.testsfailed
                window = make(tab="tools")
                _shared.append((window, window.settings.kept()))
            return _shared[-1]

        yield get
    # `patch` goes back to the folder that was the current one: that of the test that came first, if this had changed it
    os.chdir(request.config.invocation_params.dir)
    if faults:
        raise faults[0]


@pytest.fixture
def shared_app(request, shared_windows, make_app) -> Iterator:
    """The window of the module, for tests that need no new one: as it was at first, except for its size, its scale and
    its tabs, which are as earlier tests have left them."""
    app, settings = shared_windows(request.session)
    put_back(app, settings)
    before = {*app.winfo_children(), *app.content.winfo_children()}
    yield app
    if was_closed(app):
        return
    kept = {*before, *app.tabs.values(), app.top_bar.search._frame}
    for child in {*app.winfo_children(), *app.content.winfo_children()} - kept:
        child.destroy()


def put_back(app, settings) -> None:
    """Put away what a test has left in a window: first the run that it followed, during which a change of settings is
    remarked on.

    settings: those at first, as `SettingsModel.kept` gives them.
    """
    from modules.ui.models.RunState import RunState

    run = app.run
    run.close()
    run._asked_to_stop.clear()
    run._reader = run._history = run._shown = None
    run._show(RunState())
    app.settings.return_to(settings)
    app.settings.history.clear()
    app.set_show_all(False)
    app.problems.forget_refusal()
    app.devices.usage = []
    app.devices.take_machine(read_machine())
    app.launch.set_places(None, follows_run_folder=True)
    app.log_rank = None
    if app.theme.appearance != app.preferences.appearance:
        app.theme.set_appearance(app.preferences.appearance)
    app.preferences.recent, app.preferences.runs, app.preferences.captioner, app.preferences.masker = [], [], {}, {}
    app.open_tab("tools")
    if app.top_bar.search.get():
        app.top_bar.search.close()
    app.focus_set()
    for text in app.banner.texts:
        app.banner.close(text)
    for label, _ in app.banner._rows:
        label.configure(text="")


@pytest.fixture
def wait_for(make_app) -> Callable:
    """`wait_for(app, condition)` runs the window until the condition holds, or fails after a while."""

    def wait(app, condition: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < end, "the window did not get there in time"
            app.update()
            time.sleep(0.004)

    return wait


@pytest.fixture
def show_dataset(wait_for, monkeypatch) -> Callable:
    """`show_dataset(app, folder)` opens the dataset window of one concept and waits until all of its files are read.

    Its undo history is beside the folder, no process decodes, and letters are counted in place of tokens.
    """

    def show(app, folder: Path, resolution: int = 64):
        from modules.ui.windows.DatasetWindow import open_dataset
        from tests.support.letter_counts import LetterCounts

        monkeypatch.setattr("modules.ui.windows.DatasetWindow.NUM_DECODERS", 0)
        monkeypatch.setattr("modules.ui.windows.LongCaptions.TokenCounts", LetterCounts)
        monkeypatch.setattr("modules.curation.Journal.window_state_folder", lambda: folder.parent / "state")
        app.settings.remove("concepts", 1)
        values = {"concepts.0.path": str(folder), "concepts.0.name": folder.name, "data.resolution": resolution}
        app.settings.set_many(values)
        made = open_dataset(app, 0)
        view, cells = made.view, made.cells
        wait_for(app, lambda: view.items and view.num_read == len(view.items) and not cells.is_loading)
        return made

    return show


@functools.cache
def read_preset(name: str) -> dict:
    return load_preset(name)


def load_preset_once(name: str) -> dict:
    """The values of a preset, whose file is parsed only once."""
    return copy.deepcopy(read_preset(name))


_counted: dict[tuple, tuple] = {}


def count_demo_once(config, is_wanted: Callable[[], bool]) -> tuple:
    """What count_pictures gives; the 708 images of the demo, which take half of the time of a window, are read once."""
    from modules.ui.models.picture_count import count_key, count_pictures

    if not all(Path(concept.path).is_relative_to(DEMO) for concept in config.concepts):
        return count_pictures(config, is_wanted)
    if (key := count_key(config)) not in _counted:
        counted = count_pictures(config, is_wanted)
        if not is_wanted():  # given up
            return counted
        _counted[key] = counted
    return _counted[key]


@pytest.fixture
def settle(wait_for) -> Callable:
    """`settle(app)` runs the window until everything is built and laid out."""

    def run(app) -> None:
        wait_for(app, lambda: not app.is_building)
        for _ in range(5):  # layout triggers further layout
            app.winfo_pointerxy()  # a round trip: the display's answer comes after all earlier events
            app.update()

    return run


def was_closed(window) -> bool:
    import tkinter

    try:
        return not window.winfo_exists()
    except tkinter.TclError:
        return True
