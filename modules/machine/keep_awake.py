"""Keep this machine from going to sleep while a run trains."""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

from modules.machine.wsl import in_wsl

_ES_CONTINUOUS, _ES_SYSTEM_REQUIRED = 0x80000000, 0x1
_ANSWER_SECONDS = 2.0  # for a helper that has to query a system service

# Each keeps the machine awake while the command that follows it runs. The screen may still turn off.
_HELPERS = {
    "darwin": ("caffeinate", "-i"),
    "linux": ("systemd-inhibit", "--what=idle:sleep", "--who=Chorus", "--why=A training run is going on"),
}


@contextlib.contextmanager
def kept_awake(tell: Callable[[str], None]) -> Iterator[None]:
    """Keep this machine from going to sleep during the block. That also ends if this process is killed.

    Enter and leave it in the same thread. tell: called with a message if it works; not called if it is impossible, as
    on a server without such a service.
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
    if not set_state(_ES_CONTINUOUS | _ES_SYSTEM_REQUIRED):  # in effect until this thread ends or resets it
        return False
    stack.callback(set_state, _ES_CONTINUOUS)
    return True


def _helper() -> Sequence[str]:
    """The command that keeps this system awake; empty if there is none."""
    if in_wsl():  # Windows goes to sleep, not Linux
        return ()
    return _HELPERS.get(sys.platform, ())


def _by_helper(command: Sequence[str], stack: contextlib.ExitStack) -> bool:
    if not command:
        return False
    try:
        helper = subprocess.Popen(
            [*command, "sh", "-c", "echo; exec cat"],  # cat ends with this process, however that ends
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that Ctrl-C does not reach it and it can't ask for a password in the terminal
        )
    except OSError:
        return False
    stack.callback(_end, helper)
    assert helper.stdout is not None
    answers, _, _ = select.select([helper.stdout], [], [], _ANSWER_SECONDS)
    return bool(answers) and helper.stdout.readline() == b"\n"


def _end(helper: subprocess.Popen) -> None:
    with helper:  # closes its stdin
        try:
            helper.communicate(timeout=_ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            helper.kill()
