"""End this process with its parent, before there is a lifeline between them.

Imports only what loads fast.
"""

from __future__ import annotations

import os
import threading
import time

from modules.launch.lifeline import LOST_EXIT_CODE
from modules.session.atomic import is_alive

PARENT_VARIABLE = "CHORUS_PARENT"  # the parent's process id, for a process that calls `end_with_parent`

_LOOK_SECONDS = 0.5


def wait_for_end_of(parent: int) -> None:
    """Block until `parent`, the process that started this one, is gone."""
    # Windows keeps naming a parent that has ended; elsewhere the process is reparented at once.
    while is_alive(parent) if os.name == "nt" else os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)


def end_with_parent() -> None:
    """From now on, end this process soon after its parent ends."""
    # from the environment, as the parent may already be gone and replaced; children of this process watch this one
    parent = int(os.environ.pop(PARENT_VARIABLE, os.getppid()))

    def watch() -> None:
        wait_for_end_of(parent)
        os._exit(LOST_EXIT_CODE)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
