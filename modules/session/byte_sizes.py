"""Sizes of files and disks, formatted for messages."""

from __future__ import annotations


def spoken_bytes(size: float) -> str:
    """A size in words, such as "1.5 GB"."""
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
