"""How a program ends while threads of it may still be computing."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from modules.session.printing import print_text

STOPPED = 130


def end_program(main: Callable[[], object], waits: bool = True) -> NoReturn:
    """Run `main` and end this process with the exit code that it returns, as `sys.exit(main())` does, but leave daemon
    threads and modules as they are.

    While Python takes its interpreter apart, it ends a daemon thread wherever that next needs the GIL, also below code
    in C++ or Rust, such as that of pydantic and torch, which then aborts the process: "FATAL: exception not rethrown",
    with a core dump (seen with Python 3.11 at 5 of 6 ends while two threads validated settings; Python 3.14 lets them
    hang instead). A thread that reads stdin makes it abort, too: "could not acquire lock for <_io.BufferedReader>".

    As at any end, other threads are waited for, functions of `atexit` are called and the output is flushed. Files that
    are still open for writing are not: close them.

    waits: whether it waits for other threads, also those of a ThreadPoolExecutor that a daemon thread uses.
    """
    code = _exit_code(main)
    if waits:
        try:
            threading._shutdown()  # type: ignore[attr-defined]  # as Python does at its end
        except KeyboardInterrupt:  # by who doesn't want to wait
            code = STOPPED
    atexit._run_exitfuncs()  # multiprocessing calls it for the same reason
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody reads it; it is closed or not there
            stream.flush()
    os._exit(code)


def _exit_code(main: Callable[[], object]) -> int:
    try:
        return _as_number(main())
    except SystemExit as end:
        return _as_number(end.code)
    except BaseException:
        try:
            sys.excepthook(*sys.exc_info())
        except SystemExit as end:  # scripts/terminal.py gives Ctrl-C its own exit code
            return _as_number(end.code)
        return 1


def _as_number(code: object) -> int:
    """As sys.exit takes it."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if os.name == "posix" else code
    with contextlib.suppress(OSError, ValueError):
        print_text(code, sys.stderr)
    return 1
