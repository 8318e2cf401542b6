"""Output whose reader is gone."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from modules.session.standard_streams import LastingStream
from modules.session.TerminalCallbacks import TerminalCallbacks
from tests.session.test_callbacks import call_all

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a console of Windows ends its processes when it is closed")


@pytest.fixture
def terminal():
    """A stream to a terminal, and a function that closes the terminal."""
    import pty

    screen, number = pty.openpty()
    with open(number, "w", encoding="utf-8", buffering=1) as stream:
        yield stream, lambda: os.close(screen)
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)  # closing flushes the buffer


def test_what_is_written_to_a_closed_terminal_is_lost_and_no_error(terminal, monkeypatch):
    plain, close = terminal
    stream = LastingStream(plain)
    monkeypatch.setattr(sys, "stderr", stream)
    close()
    with pytest.raises(OSError):
        print("a line", file=plain)
    for _ in range(1000):  # more than a buffer holds
        print("a line of some length", file=sys.stderr)
    stream.flush()
    stream.detach()


@pytest.mark.parametrize("has_shown_bar", [True, False])
def test_callbacks_outlive_the_terminal_on_which_they_show_a_bar(has_shown_bar, terminal):
    stream, close = terminal
    callbacks = TerminalCallbacks(stream)
    if has_shown_bar:
        call_all(callbacks)
    close()
    call_all(callbacks)
    callbacks.close()


@pytest.mark.parametrize("has_shown_bar", [True, False])
def test_callbacks_outlive_a_stream_that_is_closed(has_shown_bar, terminal):
    stream = open(os.dup(terminal[0].fileno()), "w", encoding="utf-8", buffering=1)  # noqa: SIM115
    callbacks = TerminalCallbacks(stream)
    if has_shown_bar:
        call_all(callbacks)
    stream.close()
    call_all(callbacks)
    callbacks.close()


def test_a_stream_keeps_what_the_one_below_it_was_set_to():
    below = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace", line_buffering=True)
    stream = LastingStream(below)
    print("a cat: \U0001f408", file=stream)
    assert below.buffer.getvalue() == b"a cat: \\U0001f408\n"
    stream.reconfigure(errors="strict")
    with pytest.raises(UnicodeEncodeError):  # errors of the writer are still raised
        print("a cat: \U0001f408", file=stream)
    stream.detach()


def test_a_process_whose_reader_has_left_ends_with_its_own_exit_code():
    outlast = "from modules.session.standard_streams import outlast_readers; outlast_readers()"
    script = f"{outlast}; print('a line'); raise SystemExit(130)"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), errors) == (130, b"")
