"""A child process: it ends when asked, keeps what it said, and never outlives an error of the one that waits for it."""

import subprocess
import sys
import tempfile
import threading

import pytest

from modules.machine.ChildProcess import ChildProcess


def started(code: str, **options) -> ChildProcess:
    child = ChildProcess(**options)
    assert child.start([sys.executable, "-S", "-c", code])
    return child


def test_output_and_errors_are_kept_in_utf_8_whatever_the_terminal_writes(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii:backslashreplace")
    done = started("import sys; print('Gerät'); sys.exit('測試')").wait()
    assert (done.returncode, done.stdout.decode().strip(), done.stderr.decode().strip()) == (1, "Gerät", "測試")


def test_each_line_is_heard_when_it_is_written_even_while_many_errors_are():
    code = "import sys; print(1, flush=True); sys.stderr.write('x' * 10**6); print(2)"
    heard: list[bytes] = []
    done = started(code).wait(heard=lambda line: heard.append(line.strip()))
    assert (heard, len(done.stderr)) == ([b"1", b"2"], 10**6)


def test_one_that_was_cancelled_does_not_start():
    child = ChildProcess()
    child.cancel()
    assert not child.start([sys.executable, "--version"])
    assert child.process is None


def test_one_that_is_cancelled_while_another_thread_waits_ends():
    child = started("import time; print(1, flush=True); time.sleep(600)")
    heard = threading.Event()
    waiting = threading.Thread(target=child.wait, kwargs={"heard": lambda line: heard.set()})
    waiting.start()
    assert heard.wait(300)
    child.cancel()
    waiting.join(300)
    assert not child.is_running


def test_one_that_takes_too_long_is_killed_though_its_own_child_holds_the_pipes(monkeypatch):
    monkeypatch.setattr("modules.machine.ChildProcess.END_SECONDS", 0.1)
    own = (
        "import subprocess, sys, time; print('said', flush=True); p = subprocess.Popen(['sleep', '20']); time.sleep(20)"
    )
    child = started(own)
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        child.wait(3)
    assert caught.value.stdout.strip() == b"said"
    assert not child.is_running


def test_an_error_of_who_listens_ends_it():
    child = started("import time; print(1, flush=True); time.sleep(600)")
    with pytest.raises(ZeroDivisionError):
        child.wait(heard=lambda line: 1 / 0)
    assert not child.is_running


def test_ending_waits_for_one_that_ignores_the_signal_and_kills_it(monkeypatch):
    monkeypatch.setattr("modules.machine.ChildProcess.END_SECONDS", 0.1)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    with tempfile.TemporaryFile() as said:
        child = started(deaf, output=said)
        while not said.seek(0, 2):
            pass
        child.end()
    assert not child.is_running
