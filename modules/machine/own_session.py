"""Start a process that outlives the one that starts it."""

from __future__ import annotations

import os
import subprocess
from typing import Any


def own_session() -> dict[str, Any]:
    """Options of Popen for a process that outlives this one and its terminal."""
    if os.name == "nt":  # with a hidden console: without one, each child process would open a black window
        flags = (getattr(subprocess, name) for name in ("CREATE_NO_WINDOW", "CREATE_NEW_PROCESS_GROUP"))
        return {"creationflags": sum(flags)}
    return {"start_new_session": True}
