"""Ending with the process that has started this one, before there is a lifeline to it.

Imports nothing that takes long.
"""

from __future__ import annotations

import os
import threading
import time

from modules.launch.lifeline import LOST_EXIT_CODE
from modules.session.atomic import is_alive

PARENT_VARIABLE = "CHORUS_PARENT"  # the process id of who starts a process that calls `end_with_parent`

_LOOK_SECONDS = 0.5


def wait_for_end_of(parent: int) -> None:
    """Returns when the process `parent`, which has started this one, is gone."""
    # Windows goes on naming a parent that has ended; elsewhere another process takes its place at once.
    while is_alive(parent) if os.name == "nt" else os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)


def end_with_parent() -> None:
    """From now on this process ends soon after the one that has started it, whatever it is doing."""
    # the parent may be gone already, and another one in its place; what this process starts has this one for a parent
    parent = int(os.environ.pop(PARENT_VARIABLE, os.getppid()))

    def watch() -> None:
        wait_for_end_of(parent)
        os._exit(LOST_EXIT_CODE)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
