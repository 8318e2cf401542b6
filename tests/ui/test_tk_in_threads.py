"""What belongs to Tk is freed in its thread alone: elsewhere, variables and images fail and Tcl ends the process."""

import gc
import queue
import sys
import threading
import tkinter
import weakref

from tests.support.waiting import PATIENCE_SECONDS, in_thread


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
