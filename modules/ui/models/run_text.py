"""The progress of a run in words. No Tk."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from modules.config.counted import counted
from modules.machine.memory_estimate import GIB

if TYPE_CHECKING:
    from modules.ui.models.RunState import RankRow, RunState

TRAINING = "Training"  # the phase of steps, which are counted
STARTING = "Starting"  # before the run says anything
ENDED_WELL = ("finished", "stopped")
ENDED_BADLY = ("failed", "killed", "hung", "ended", "lost")
SLOWER = 0.03  # smaller differences are noise
LONG_WAIT = 0.05  # of the time: a rank that waits longer for data slows down the run


def describe_progress(state: RunState) -> str:
    """Phase, epoch, step, loss, speed and remaining time, as far as they are known."""
    if state.message:
        return state.message
    if state.folder is None:
        return "No run yet"
    parts = [state.folder.name, describe_phase(state)]
    if state.step:
        parts.append(f"epoch {state.epoch}")
        parts.append(describe_step(state))
    if state.smooth is not None:
        parts.append(f"loss {state.smooth:.4f}")
    if state.is_running and state.eta_seconds is not None:
        parts.append(f"ETA {describe_seconds(state.eta_seconds)}")
    if state.is_running and state.steps_per_second:
        parts.append(f"{state.steps_per_second:.2f} it/s")
    if state.is_running and state.samples_per_second:
        parts.append(f"{state.samples_per_second:.1f} images/s")
    return "   ".join(parts)


def describe_phase(state: RunState) -> str:
    """What the run is doing, or how it ended."""
    if state.exit is not None and not state.is_running:
        return str(state.exit.get("status", "ended")).capitalize()
    if state.is_running and state.waits_for:
        return state.waits_for
    if state.is_stopping:
        return "Stopping…"
    if state.activity is not None:
        return f"{state.activity.text}: {state.activity.done:,} of {state.activity.total:,}"
    return state.phase or (STARTING if state.is_running else "Ended")


def describe_warnings(state: RunState) -> str:
    """The latest warning of a run, and how many there are before it; "" if there is none."""
    if not state.warnings:
        return ""
    others = len(state.warnings) - 1
    text = state.warnings[-1].text
    return text if not others else f"{text}\n{counted(others, 'earlier warning')} in the log."


def describe_end(state: RunState) -> str:
    """Such as "Finished in 02:41"; of a resumed run, only the time since then is known."""
    elapsed = state.elapsed(0.0)
    if elapsed is None:
        return describe_phase(state)
    text = (
        f"{describe_seconds(elapsed)} after it was resumed" if state.is_resumed else f"in {describe_seconds(elapsed)}"
    )
    return f"{describe_phase(state)} {text}"


def describe_result(state: RunState) -> str:
    """Steps, of how many if it ended before the last, epochs and loss; for a failure also the reason."""
    steps = counted(state.step, "step")
    if state.step < state.total:
        steps = f"{state.step:,} of {counted(state.total, 'step')}"
    parts = [steps, counted(state.epoch, "epoch")] if state.step else []
    if state.smooth is not None:
        parts.append(f"final loss {state.smooth:.4f}")
    text = state.exit.get("text") if state.exit else None
    return "\n".join(part for part in (", ".join(parts), str(text or "")) if part)


def describe_step(state: RunState) -> str:
    """Such as "step 320 of 500"."""
    return f"step {state.step:,}" + (f" of {state.total:,}" if state.total else "")


def describe_seconds(seconds: float) -> str:
    """A duration as 1:02:03, or as 02:03 below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def share_done(state: RunState) -> float | None:
    """The share of the current activity that is done, else of the steps; None while nobody knows how long it takes."""
    if state.activity is not None:
        return state.activity.done / max(1, state.activity.total)
    if state.is_running and not state.waits_for and not state.phase.startswith(TRAINING):
        return None
    return state.step / state.total if state.total else 0.0


def describe_ranks(ranks: Sequence[RankRow]) -> str:
    """A summary such as "8 of 8 alive, slowest rank 5 (+12%)", with the state of ranks that are not alive."""
    if not ranks:
        return "none: no run is shown"
    ended = [row for row in ranks if row.state in ENDED_WELL]
    if len(ended) == len(ranks):
        return f"all {len(ranks)} {ranks[0].state}" if len({row.state for row in ranks}) == 1 else "all ended"
    bad = [f"rank {row.rank} {row.state}" for row in ranks if row.state in ENDED_BADLY]
    alive = len(ranks) - len(bad) - len(ended)
    return ", ".join([f"{alive} of {len(ranks)} alive", *bad[:3], *_slowest(ranks)])


def describe_memory(row: RankRow) -> str | None:
    """Memory in GiB, with the peak in brackets; None if it is not measured."""
    if row.memory_bytes is None:
        return None
    peak = "" if row.peak_memory_bytes is None else f" ({row.peak_memory_bytes / GIB:.1f})"
    return f"{row.memory_bytes / GIB:.1f}{peak}"


def data_wait(row: RankRow) -> float | None:
    """The share of its last step that a rank waited for data; None if unknown."""
    if row.data_seconds is None or not row.steps_per_second:
        return None
    return min(1.0, row.data_seconds * row.steps_per_second)


def wait_advice(ranks: Sequence[RankRow]) -> str:
    """What to do if a rank waits for data for long; "" if none does."""
    waits = {row.rank: wait for row in ranks if row.state == "training" and (wait := data_wait(row)) is not None}
    longest = max(waits, key=waits.__getitem__, default=None)
    if longest is None or waits[longest] < LONG_WAIT:
        return ""
    return f"Rank {longest} waits for images {percent(waits[longest])} of the time: raise Prefetch on the Dataset tab."


def percent(share: float) -> str:
    """Such as "12%"."""
    return f"{share:.0%}"


def _slowest(ranks: Sequence[RankRow]) -> list[str]:
    speeds = {row.rank: row.steps_per_second for row in ranks if row.steps_per_second}
    if len(speeds) < 2:
        return []
    slowest = min(speeds, key=speeds.__getitem__)
    excess = statistics.median(speeds.values()) / speeds[slowest] - 1
    return [f"slowest rank {slowest} (+{percent(excess)})"] if excess > SLOWER else []
