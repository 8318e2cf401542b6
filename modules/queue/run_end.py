"""How a run of the queue has ended, from what it has left behind."""

from __future__ import annotations

import os
from pathlib import Path

from modules.config.visible_text import visible_text
from modules.queue.entry_events import End
from modules.session.following import read_end, run_info
from modules.session.RunFolder import RunFolder

TAIL_BYTES = 4000
TAIL_LINES = 5


def end_of_run(folder: RunFolder, since: float) -> tuple[End, str] | None:
    """How the run that was started at the Unix time `since` ended, and a text for people; None without a record."""
    try:
        record = read_end(folder, since)
    except OSError:
        return None
    if record is None:
        return None
    return record["status"], str(record.get("text", "")) or step_text(folder)


def step_text(folder: RunFolder) -> str:
    """Such as "step 300 of 500"; "" without steps."""
    info = run_info(folder.path)
    if info is None or not info.step:
        return ""
    return f"step {info.step:,}" + (f" of {info.total:,}" if info.total else "")


def last_lines(path: Path, start: int = 0) -> str:
    """The last lines that a log has from the byte `start` on, for people."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return visible_text("\n".join(lines[-TAIL_LINES:]))
