"""What people read about a queue and its entries, and what they write: times and limits."""

from __future__ import annotations

import math
import re
import time
from datetime import datetime, timedelta

from modules.config.errors import UserError
from modules.queue.QueueEntry import QueueEntry, State
from modules.queue.run_end import step_text
from modules.session.RunFolder import RunFolder

STATE_TEXTS: dict[State, str] = {
    "running": "Running",
    "waiting": "Waiting",
    "paused": "Paused",
    "interrupted": "Interrupted",
    "finished": "Finished",
    "failed": "Failed",
    "stopped": "Stopped",
    "limit": "Time limit",
}
_WAYS = ("%Y-%m-%d %H:%M", "%Y-%m-%d")


def describe_entry(entry: QueueEntry, now: float) -> str:
    """What has become of an entry, or what it waits for, in a few words. Reads its run folder if it runs."""
    if entry.state == "running":
        return step_text(RunFolder(entry.run_folder)) or "starting"
    if entry.state in ("waiting", "interrupted", "paused"):
        begun = "continues from its backup" if entry.record.was_started and entry.state != "paused" else ""
        later = entry.not_before is not None and entry.not_before > now
        at = f"not before {time_text(entry.not_before, now)}" if later and entry.not_before is not None else ""
        return ", ".join(filter(None, (begun, at)))
    return entry.record.text


def time_text(moment: float, now: float) -> str:
    """A time of the clock, with the day unless it is today."""
    there, today = datetime.fromtimestamp(moment), datetime.fromtimestamp(now)
    return f"{there:%H:%M}" if there.date() == today.date() else f"{there:%Y-%m-%d %H:%M}"


def read_time(text: str, now: float | None = None) -> float | None:
    """The Unix time of "22:30" (the next one), "2026-12-01 22:30" or "2026-12-01"; None for "" and "now".

    Raises UserError.
    """
    text = text.strip()
    if text in ("", "now"):
        return None
    here = datetime.fromtimestamp(time.time() if now is None else now)
    if re.fullmatch(r"\d{1,2}:\d{2}", text):
        try:
            moment = datetime.combine(here.date(), datetime.strptime(text, "%H:%M").time())
        except ValueError:
            raise _no_time(text) from None
        return (moment if moment > here else moment + timedelta(days=1)).timestamp()
    for way in _WAYS:
        try:
            return datetime.strptime(text, way).timestamp()
        except (ValueError, OverflowError):
            continue
    raise _no_time(text)


def read_hours(text: str) -> float | None:
    """A limit in hours, such as "2" and "0.5"; None for "" and "none". Raises UserError."""
    text = text.strip().removesuffix("h").strip()
    if text in ("", "none"):
        return None
    try:
        hours = float(text)
    except ValueError:
        hours = math.nan
    if not 0 < hours < 10_000:
        raise UserError(f"Limit {text!r}: write hours, such as 2 or 0.5, or leave it empty for none.")
    return hours


def _no_time(text: str) -> UserError:
    return UserError(f"Start at {text!r}: write a time such as 22:30 or 2026-12-01 22:30, or leave it empty.")
