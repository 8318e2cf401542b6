"""Threads of the window are used again, and work never waits for other work."""

import threading
from types import SimpleNamespace

from modules.config.errors import UserError
from modules.ui.models import WorkerThreads as module
from modules.ui.models.WorkerThreads import WorkerThreads
from modules.ui.models.WriteQueue import WriteQueue
from tests.support.waiting import PATIENCE_SECONDS, wait_until


def test_a_thread_that_is_idle_takes_the_next_work_and_busy_ones_are_not_waited_for():
    threads, names, go_on = WorkerThreads(), [], threading.Event()

    def note() -> None:
        names.append(threading.current_thread().name)

    threads.run(note)
    wait_until(lambda: threads._num_idle == 1)
    threads.run(note)
    wait_until(lambda: threads._num_idle == 1)
    assert len(set(names)) == 1
    for _ in range(3):
        threads.run(go_on.wait)
    threads.run(note)  # a fourth thread
    wait_until(lambda: len(names) == 3)
    go_on.set()
    wait_until(lambda: threads._num_idle == 4)


def test_threads_without_work_end(monkeypatch):
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.01)
    threads, ended = WorkerThreads(), []
    for _ in range(20):
        threads.run(lambda: ended.append(threading.current_thread()))
    wait_until(lambda: len(ended) == 20 and not any(thread.is_alive() for thread in ended))
    assert threads._num_idle == 0


def test_works_can_be_waited_for():
    threads, go_on = WorkerThreads(), threading.Event()
    assert threads.wait(0)
    threads.run(go_on.wait)
    threads.run(lambda: None)
    assert not threads.wait(0.01)
    go_on.set()
    assert threads.wait(PATIENCE_SECONDS)


def test_changes_that_wait_are_made_in_their_order_when_the_window_closes_and_what_is_refused_is_kept():
    threads, written, told, may_write = WorkerThreads(), [], [], threading.Event()
    scheduler = SimpleNamespace(in_background=lambda work, then, failed=None: threads.run(work))
    writing = WriteQueue(scheduler, lambda: True, lambda: None, told.append)

    def refuse() -> None:
        may_write.wait()
        raise UserError("It was changed outside.")

    def add(write, kept: str) -> None:
        writing.add(write, lambda result: None, lambda error: None, lambda: f"It is kept in {kept}.")

    add(refuse, "a")  # is being made when the window closes
    for number, write in enumerate((lambda: written.append(2), refuse, lambda: written.append(3))):
        add(write, f"b{number}")
    writing.close()
    assert written == []
    may_write.set()
    assert threads.wait(PATIENCE_SECONDS)
    assert written == [2, 3]
    assert told == ["It was changed outside. It is kept in a.", "It was changed outside. It is kept in b1."]


def test_what_was_refused_as_the_window_closed_is_kept_though_nobody_was_asked():
    told, works = [], []
    scheduler = SimpleNamespace(in_background=lambda work, then, failed=None: works.append(work))
    writing = WriteQueue(scheduler, lambda: True, lambda: None, told.append)

    def refuse() -> None:
        raise UserError("It was changed outside.")

    writing.add(refuse, lambda result: None, lambda error: None, lambda: "It is kept in a.")
    works.pop()()
    writing.close()  # before the window has learned of it
    works.pop()()
    assert told == ["It was changed outside. It is kept in a."]
