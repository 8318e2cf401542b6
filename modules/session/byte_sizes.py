"""Sizes of files and disks, for people."""

from __future__ import annotations


def spoken_bytes(size: float) -> str:
    """1.5 GB"""
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
