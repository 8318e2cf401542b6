"""Keeping this machine from going to sleep while a run trains."""

from __future__ import annotations

import contextlib
import platform
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

_ES_CONTINUOUS, _ES_SYSTEM_REQUIRED = 0x80000000, 0x1
_ANSWER_SECONDS = 2.0  # for a helper that has to ask a service of the system

# Each keeps the machine awake while the command behind it runs. The screen may go dark.
_HELPERS = {
    "darwin": ("caffeinate", "-i"),
    "linux": ("systemd-inhibit", "--what=idle:sleep", "--who=Chorus", "--why=A training run is going on"),
}


@contextlib.contextmanager
def kept_awake(tell: Callable[[str], None]) -> Iterator[None]:
    """Inside, this machine does not go to sleep by itself; afterwards, and when this process is killed, it may again.

    To be entered and left by one thread. tell: given a line that says so; nothing where it is not possible, as on a
    server without such a service.
    """
    with contextlib.ExitStack() as stack:
        if _on_windows(stack) if sys.platform == "win32" else _by_helper(_helper(), stack):
            tell("Keeping this machine awake until the run ends")
        yield


def _on_windows(stack: contextlib.ExitStack) -> bool:
    import ctypes

    set_state = ctypes.WinDLL("kernel32").SetThreadExecutionState  # type: ignore[attr-defined] # Windows has it
    set_state.argtypes = [ctypes.c_uint32]
    set_state.restype = ctypes.c_uint32
    if not set_state(_ES_CONTINUOUS | _ES_SYSTEM_REQUIRED):  # holds until this thread ends, or says otherwise
        return False
    stack.callback(set_state, _ES_CONTINUOUS)
    return True


def _helper() -> Sequence[str]:
    """The command that keeps this system awake; empty where there is none."""
    if "microsoft" in platform.release().lower():  # WSL: it is Windows that goes to sleep
        return ()
    return _HELPERS.get(sys.platform, ())


def _by_helper(command: Sequence[str], stack: contextlib.ExitStack) -> bool:
    if not command:
        return False
    try:
        helper = subprocess.Popen(
            [*command, "sh", "-c", "echo; exec cat"],  # cat ends when this process does, whatever ends it
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C does not reach it, and it can't ask for a password at the terminal
        )
    except OSError:
        return False
    stack.callback(_end, helper)
    assert helper.stdout is not None
    answers, _, _ = select.select([helper.stdout], [], [], _ANSWER_SECONDS)
    return bool(answers) and helper.stdout.readline() == b"\n"


def _end(helper: subprocess.Popen) -> None:
    with helper:  # closes its input
        try:
            helper.communicate(timeout=_ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            helper.kill()
