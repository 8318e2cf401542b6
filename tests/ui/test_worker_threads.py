"""Threads of the window are used again, and work never waits for other work."""

import threading

from modules.ui.models import WorkerThreads as module
from modules.ui.models.WorkerThreads import WorkerThreads
from tests.support.waiting import wait_until


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
