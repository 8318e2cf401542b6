"""How a script gets on with the terminal: it ends plainly on Ctrl-C, and does not mind who has stopped reading."""

import os
import sys
import traceback
from types import TracebackType

STOPPED = 130


def end_plainly_on_ctrl_c() -> None:
    """From now on Ctrl-C that nobody else answers is one line and exit code 130.

    To be called before a script's own imports: they are where who has mistyped presses it.
    """
    def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            from modules.session.printing import print_text

            print_text("".join(traceback.format_exception(kind, error, trace)), sys.stderr)
            return
        print("Stopped.", file=sys.stderr)
        raise SystemExit(STOPPED)  # by itself Python ends by the signal, which only a shell turns into 130

    sys.excepthook = end


def show(text: str) -> None:
    """Prints it, as `print_text` does, to whoever still reads: of `| head` only a few lines are wanted."""
    from modules.session.printing import print_text

    try:
        print_text(text)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
