"""Numbers of things, in words."""

from __future__ import annotations


def counted(number: int, noun: str, several: str = "") -> str:
    """Such as "1 step" and "1,200 steps". several: the plural, if it does not end in s, or has its verb behind it."""
    return f"{number:,} {noun if number == 1 else several or f'{noun}s'}"
