"""How a script gets on with the terminal: it ends plainly on Ctrl-C, and does not mind who has stopped reading."""

import contextlib
import io
import os
import sys
import time
import traceback
from types import TracebackType

STOPPED = 130
PROGRESS_SECONDS = 5.0


def prepare_terminal() -> None:
    """Opens the standard streams that are not there; from now on Ctrl-C that nobody else answers ends plainly.

    To be called before a script's own imports: they are where who has mistyped presses Ctrl-C, and open files.
    """
    _open_missing_streams()
    _end_plainly_on_ctrl_c()


def escape_unprintable() -> None:
    """From now on stdout escapes what it can't express, such as a file name that is not valid Unicode."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # not replaced by something that takes every text
        sys.stdout.reconfigure(errors="backslashreplace")


def show(text: str) -> None:
    """Prints it, as `print_text` does, to whoever still reads: of `| head` only a few lines are wanted."""
    from modules.session.printing import print_text

    try:
        print_text(text)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end


class Progress:
    """Says on a terminal now and then how many things are done."""

    def __init__(self, what: str):
        """what: such as "Decoding images"."""
        self._what = what
        self._next = time.monotonic() + PROGRESS_SECONDS

    def __call__(self, done: int, total: int) -> None:
        from modules.session.printing import print_line

        if time.monotonic() >= self._next and sys.stderr.isatty():
            self._next = time.monotonic() + PROGRESS_SECONDS
            print_line(f"{self._what}: {done} of {total}", sys.stderr)


def _open_missing_streams() -> None:
    """In place of those that the caller has closed (`>&-`): Python has None for them, which no code counts on.

    They lead nowhere, under the numbers of those that are missing. Else the next file to be opened would get such a
    number, and with it whatever a library or another process writes to stdout or stderr.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest one that is free
            os.set_inheritable(number, True)
            stream = open(number, mode, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - for good
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def _end_plainly_on_ctrl_c() -> None:
    """By one line and exit code 130."""

    def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            from modules.session.printing import print_text

            print_text("".join(traceback.format_exception(kind, error, trace)), sys.stderr)
            return
        with contextlib.suppress(OSError):  # of a terminal that was closed
            print("Stopped.", file=sys.stderr)
        raise SystemExit(STOPPED)  # by itself Python ends by the signal, which only a shell turns into 130

    sys.excepthook = end
