"""Whether this is Linux inside Windows."""

from __future__ import annotations

import platform


def in_wsl() -> bool:
    """There, Windows' driver and its power management have the last word."""
    return "microsoft" in platform.release().lower()
