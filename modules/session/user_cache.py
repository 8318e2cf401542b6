"""Where files lie that only save time: in the folder for caches that the system has for each user."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def user_cache() -> Path:
    """Chorus' folder in it, which need not exist."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.expanduser("~/AppData/Local")
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "chorus"
