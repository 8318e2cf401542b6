"""How a script gets on with the terminal: it ends plainly on Ctrl-C, and does not mind who has stopped reading."""

import os
import sys
from types import TracebackType

STOPPED = 130


def end_plainly_on_ctrl_c() -> None:
    """From now on Ctrl-C that nobody else answers is one line and exit code 130.

    To be called before a script's own imports: they are where who has mistyped presses it.
    """
    show_error = sys.excepthook

    def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            show_error(kind, error, trace)
            return
        print("Stopped.", file=sys.stderr)
        raise SystemExit(STOPPED)  # by itself Python ends by the signal, which only a shell turns into 130

    sys.excepthook = end


def show(text: str) -> None:
    """Prints it to whoever still reads: of `| head` only a few lines are wanted."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
