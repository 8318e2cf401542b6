"""What the person who waits is told, on stderr, for stdout is kept for --print-python."""

import shutil
import sys


def say_on_terminal(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def say_in_place(line: str) -> None:
    width = shutil.get_terminal_size().columns - 1
    print("\r" + line.strip()[:width].ljust(width) + ("" if line else "\r"), end="", file=sys.stderr, flush=True)


def say_nothing(line: str) -> None:
    pass
