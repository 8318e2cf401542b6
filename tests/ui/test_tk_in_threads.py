"""What belongs to Tk is freed in its thread alone: elsewhere, variables and images fail and Tcl ends the process."""

import ast
import gc
import queue
import sys
import threading
import tkinter
import weakref

from modules.config.installation import ROOT
from tests.support.waiting import PATIENCE_SECONDS, in_thread

WIDGETS = {"self", "app", "pane", "window"}  # what they are called where work is given to a thread


class SlowToReturn(queue.SimpleQueue):
    """Threads that put something into it go on when they are allowed to."""

    def __init__(self):
        self.may_go_on = threading.Event()

    def put(self, item):
        super().put(item)
        if threading.current_thread() is not threading.main_thread():
            self.may_go_on.wait(PATIENCE_SECONDS)


def test_a_thread_is_not_the_last_to_hold_the_widgets_that_its_work_is_for(app, wait_for):
    class Taker:
        def take(self, result):
            results.append(result)

    results, taker, slow = [], Taker(), SlowToReturn()
    is_there = weakref.ref(taker)
    app._results = slow
    app.in_background(lambda: 1, taker.take)
    del taker
    try:
        wait_for(app, lambda: results)
        assert is_there() is None  # while the thread is still busy with handing it over
    finally:
        slow.may_go_on.set()


def test_threads_do_not_collect_a_window_that_was_closed(make_app, monkeypatch):
    failures = []
    monkeypatch.setattr(sys, "unraisablehook", failures.append)
    window = make_app(tab="tools")
    variable = tkinter.BooleanVar(window)
    circle = [variable]
    circle.append(circle)
    window.destroy()
    del variable, circle

    def allocate():
        for _ in range(200_000):
            one = []
            one.append(one)

    with in_thread(allocate):
        pass
    assert not failures
    gc.collect()
    assert not failures


def test_work_in_a_thread_is_given_what_it_needs_and_no_widget():
    """`lambda: self.model.read()` would be `model = self.model` and `lambda: model.read()`."""
    found = 0
    for path in sorted((ROOT / "modules" / "ui").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        functions = ast.walk(ast.parse(text)) if "in_background(" in text else ()
        for function in (node for node in functions if isinstance(node, ast.FunctionDef)):
            nodes = list(ast.walk(function))
            inner = {node.name: node for node in nodes[1:] if isinstance(node, ast.FunctionDef)}
            for call in filter(is_in_background, nodes):
                found += 1
                assert not held(call.args[0], inner) & WIDGETS, f"{path.name}:{call.lineno}"
    assert found > 80


def is_in_background(node) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "in_background"


def held(work, inner) -> set[str]:
    """The names in a lambda or function, and in the functions that these name."""
    if isinstance(work, ast.Name):
        work = inner.get(work.id)
    if not isinstance(work, (ast.Lambda, ast.FunctionDef)):
        return set()
    names = {node.id for node in ast.walk(work) if isinstance(node, ast.Name)}
    called = (inner[name] for name in names & inner.keys() if inner[name] is not work)
    return names.union(*(held(one, inner) for one in called))
