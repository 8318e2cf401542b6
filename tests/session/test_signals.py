"""The signals that ask for a stop, and how signals that arrive too early are kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from modules.session.signals import (
    NOTICE_SIGNALS,
    EarlySignal,
    remember_signals,
    signals_answered,
    signals_blocked,
    signals_remembered,
    stop_signals,
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="these tests send signals")


@pytest.fixture(autouse=True)
def same_handlers():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_closed_terminal_asks_for_a_stop_unless_the_process_was_started_to_outlive_it():
    assert signal.SIGHUP in stop_signals()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as in a process started by nohup
    assert stop_signals() == (signal.SIGINT, signal.SIGTERM, *NOTICE_SIGNALS)


def test_a_signal_that_comes_early_is_answered_as_soon_as_somebody_can():
    answered = []
    with signals_remembered((signal.SIGTERM, signal.SIGHUP)):
        signal.raise_signal(signal.SIGHUP)
        with signals_answered(dict.fromkeys(stop_signals(), lambda number, frame: answered.append(number))):
            assert answered == [signal.SIGHUP]
            signal.raise_signal(signal.SIGTERM)
            assert answered == [signal.SIGHUP, signal.SIGTERM]
        signal.raise_signal(signal.SIGTERM)  # a late signal does not end the process either


def test_what_has_been_remembered_is_not_forgotten_by_remembering_more():
    remember_signals((signal.SIGTERM,))
    signal.raise_signal(signal.SIGTERM)
    with signals_remembered((signal.SIGTERM, signal.SIGHUP)):
        assert signal.getsignal(signal.SIGTERM).has_come
    assert signal.getsignal(signal.SIGTERM).has_come


def test_handlers_are_put_back_but_for_those_that_were_set_for_good():
    before = signal.getsignal(signal.SIGHUP)
    with signals_remembered((signal.SIGTERM, signal.SIGHUP)):
        assert isinstance(signal.getsignal(signal.SIGHUP), EarlySignal)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGHUP) is before
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


def test_a_thread_that_can_handle_no_signals_is_left_alone():
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def run() -> None:
        with signals_remembered((signal.SIGTERM,)), signals_answered({signal.SIGTERM: lambda *_: None}):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_blocked_signal_ends_no_process_that_starts_and_is_heard_by_the_one_that_starts_it():
    child = "import os, signal; os.kill(os.getpid(), signal.SIGHUP); print('lives')"
    answered = []
    with signals_answered({signal.SIGHUP: lambda number, frame: answered.append(number)}):
        with signals_blocked((signal.SIGHUP,)):
            os.kill(os.getpid(), signal.SIGHUP)
            done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
        assert answered == [signal.SIGHUP]
    assert (done.returncode, done.stdout) == (0, "lives\n")
