"""The window by the clock: its first picture, its tabs, its pulse under load, many pictures, and a long run.

Everything is measured in a process of its own with a state of its own, on the display that there is. The windows are
real ones; `scripts/benchmarks/ui_window.py` is what runs in them.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from modules.config.errors import UserError
from modules.session.atomic import new_folder
from modules.session.RunFolder import RunFolder
from scripts.benchmarks.results import Figure

ROOT = Path(__file__).resolve().parents[2]

NUM_STARTS = 15
NUM_ROUNDS = 5  # windows in which every tab is opened, each time in another order
NUM_CONCEPT_PICTURES = 200
PULSE_SECONDS = 30
NUM_PICTURES = 5000
NUM_DATASET = 20_000
DATASET_SECONDS = 30
NUM_STEPS = 1_000_000
PICTURE_SIDE = 192

PAINT_SECONDS = 0.45
BLOCKED_MS = 50
PULSE_MS = 60
SECOND_TRIP_MIB = 4.0  # what a trip through all pictures may leave in memory, once one has filled the cache


def measure_ui(folder: Path, parts: list[str]) -> Iterator[Figure]:
    """The figures of these PARTS, each as soon as it is there. Raises UserError where there is no display."""
    if sys.platform.startswith("linux") and not os.environ.get("DISPLAY"):
        raise UserError("ui needs a display and DISPLAY is not set: start it on a desktop, or by xvfb-run -a.")
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        yield from PARTS[part](folder)


def first_paint(folder: Path) -> Iterator[Figure]:
    """From the start of the process to the first drawn window; a first start compiles and does not count."""
    answers = []
    for _ in range(NUM_STARTS + 1):
        started = time.time()
        answer = _in_window(folder, "first_paint")
        answers.append({**answer, **{name: answer[name] - started for name in ("time", "page_time")}})
    for name, of, limit in (("first paint", "", PAINT_SECONDS), ("first tab, complete", "page_", None)):
        seconds, cpu_seconds = ([answer[of + key] for answer in answers[1:]] for key in ("time", "cpu_seconds"))
        details = f"{_spread(seconds)} s of {NUM_STARTS} starts; processor time {median(cpu_seconds):.2f} s"
        yield Figure(name, median(seconds), "s", limit, details)


def tabs(folder: Path) -> Iterator[Figure]:
    """How long opening a tab for the first time holds up the event loop, at most: of each the median of the rounds."""
    pictures = _pictures(folder, "concept", NUM_CONCEPT_PICTURES)
    for what, concept in (("demo preset", ""), (f"concept of {NUM_CONCEPT_PICTURES} images", str(pictures))):
        found: dict[str, list[dict[str, float]]] = {}
        names = tab_names()
        for number in range(NUM_ROUNDS):
            first = 2 * number % len(names)
            order = ",".join(names[first:] + names[:first])
            for name, values in _in_window(folder, "open_tabs", order, concept).items():
                found.setdefault(name, []).append(values)
        yield from (_of_tab(name, what, values) for name, values in found.items())


def pulse(folder: Path) -> Iterator[Figure]:
    """The pulse of a window that follows a run, while as many processes as there are cores compute."""
    with _run_folder(folder) as run_folder, contextlib.ExitStack() as stack:
        num_ranks = os.cpu_count() or 2
        for rank in range(num_ranks):
            stack.enter_context(_busy_rank(run_folder, rank))
        answer = _in_window(folder, "pulse", str(run_folder.path), str(PULSE_SECONDS))
    details = (
        f"median {answer['median_ms']:.0f} ms, longest {answer['longest_ms']:.0f} ms, {answer['ticks']:,} ticks beside "
        f"{num_ranks} busy processes; {answer['steps']:,} steps drawn {answer['redraws']} times"
    )
    yield Figure("pulse of 10 ms, 99th percentile", answer["p99_ms"], "ms", PULSE_MS, details)


def pictures(folder: Path) -> Iterator[Figure]:
    """What scrolling through many pictures, to the end and back, twice, costs."""
    shown = _pictures(folder, "many", NUM_PICTURES)
    answer = _in_window(folder, "scroll", str(shown))
    before, once, twice = (mib or 0.0 for mib in answer["mib"])
    memory = f"{before:.0f} MiB before, {once:.0f} after one trip, {twice:.0f} after two"
    trip = f"{answer['steps']:,} steps through {answer['pictures']:,} images"
    if answer["mib"][0] is not None:
        yield Figure("thumbnails, growth by a second trip", twice - once, "MiB", SECOND_TRIP_MIB, memory)
    details = f"longest {answer['longest_ms']:.0f} ms; {trip}, {answer['kept']} kept decoded"
    yield Figure("thumbnails, a step of scrolling", answer["step_ms"], "ms", None, details)


def dataset(folder: Path) -> Iterator[Figure]:
    """The pulse of a window that scrolls through a large dataset while as many processes as there are cores compute."""
    shown = _pictures(folder, "many", NUM_DATASET)
    with _run_folder(folder) as run_folder, contextlib.ExitStack() as stack:
        num_busy = os.cpu_count() or 2
        for rank in range(num_busy):
            stack.enter_context(_busy_rank(run_folder, rank))
        answer = _in_window(folder, "dataset", str(shown), str(DATASET_SECONDS))
    details = (
        f"median {answer['median_ms']:.0f} ms, longest {answer['longest_ms']:.0f} ms, longest callback "
        f"{answer['callback_ms']:.0f} ms; processor time of the window's thread {answer['own_p99_ms']:.0f} ms at the "
        f"99th percentile; {answer['steps']:,} steps through {answer['images']:,} images beside {num_busy} busy "
        "processes"
    )
    yield Figure("scrolling a dataset, pulse of 10 ms, 99th percentile", answer["p99_ms"], "ms", PULSE_MS, details)
    memory = "memory not measured" if answer["mib"] is None else f"{answer['mib']:.0f} MiB more by scrolling"
    yield Figure(
        "dataset window, first screen", answer["first_seconds"], "s", None,
        f"{answer['again_seconds']:.2f} s when it is opened again; {memory}",
    )  # fmt: skip


def history(folder: Path) -> Iterator[Figure]:
    """A long run is opened: reading all its steps, and drawing them."""
    with _run_folder(folder) as run_folder:
        write_steps(run_folder.event_path(0), NUM_STEPS)
        answer = _in_window(folder, "history", str(run_folder.path))
    memory = "memory not measured" if answer["mib"] is None else f"{answer['mib']:.0f} MiB more"
    details = f"{memory}; meanwhile a pulse of 10 ms came after {answer['p99_ms']:.0f} ms at the 99th percentile"
    yield Figure(f"reading {NUM_STEPS:,} steps", answer["read_seconds"], "s", None, details)
    details = f"{answer['points']:,} points; lowest and highest loss {'kept' if answer['keeps_extremes'] else 'LOST'}"
    yield Figure("drawing them", answer["draw_ms"], "ms", None, details)
    yield Figure("steps dropped", NUM_STEPS - answer["steps"], "", 0, f"{answer['steps']:,} of {NUM_STEPS:,} kept")


PARTS = {
    "paint": first_paint,
    "tabs": tabs,
    "pulse": pulse,
    "pictures": pictures,
    "dataset": dataset,
    "history": history,
}


def tab_names() -> list[str]:
    from modules.ui.toolkit import load_toolkit

    load_toolkit()
    from modules.ui.OpeningWindow import TABS

    return list(TABS)


def step_line(rank: int, step: int, loss: float, total: int) -> str:
    """A line of an event file, as docs/run_folder.md has it."""
    event = {
        "time": time.time(), "type": "step", "rank": rank, "epoch": 1, "step": step, "steps_total": total,
        "loss": loss, "smooth_loss": round(loss * 0.99, 4), "lr": 0.0001, "samples": 32, "seconds": 0.05,
        "grad_norm": 0.031, "data_seconds": 0.002, "device": "cpu", "memory_bytes": 8123456789,
        "peak_memory_bytes": 9123456789,
    }  # fmt: skip
    return json.dumps(event) + "\n"


def write_steps(path: Path, count: int, rank: int = 0) -> None:
    """An event file of `count` steps, one of which has by far the highest loss and one the lowest."""
    extremes = {count // 3: 9.0, 2 * count // 3: 0.001}
    with path.open("w", encoding="utf-8") as file:
        for step in range(1, count + 1):
            loss = extremes.get(step, 0.1 + (step * 7919 % 1000) / 10_000)
            file.write(step_line(rank, step, loss, count))


def _of_tab(name: str, what: str, values: list[dict[str, float]]) -> Figure:
    gaps = [value["gap_ms"] for value in values]
    details = f"{_spread(gaps, 0)} ms; longest callback {median(value['callback_ms'] for value in values):.0f} ms"
    return Figure(f"opening {name}, {what}", median(gaps), "ms", BLOCKED_MS, details)


def _spread(values: list[float], digits: int = 2) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def _in_window(folder: Path, function: str, *arguments: str) -> dict[str, Any]:
    """What `function` of ui_window.py answers, in a process of its own, with a state that nobody has used before."""
    with tempfile.TemporaryDirectory(prefix="window-", dir=folder) as state_dir:
        command = [sys.executable, "-m", "scripts.benchmarks.ui_window", function, state_dir, *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", env=_environment(folder))
    if done.returncode or not done.stdout.strip():
        raise UserError(f"The window of {function} failed: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _environment(folder: Path) -> dict[str, str]:
    """Compiled modules are kept, as where a person starts it, but not in the sources."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}


@contextlib.contextmanager
def _busy_rank(run_folder: RunFolder, rank: int) -> Iterator[None]:
    command = [sys.executable, "-m", "scripts.benchmarks.ui_rank", str(run_folder.path), str(rank)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            yield
        finally:
            process.terminate()


@contextlib.contextmanager
def _run_folder(folder: Path) -> Iterator[RunFolder]:
    with tempfile.TemporaryDirectory(prefix="run-", dir=folder) as path:
        run_folder = RunFolder(path)
        run_folder.create()
        yield run_folder


def _pictures(folder: Path, name: str, count: int) -> Path:
    """A folder of so many different captioned pictures, made where it is not there yet."""
    from PIL import Image, ImageDraw

    path = folder / f"{name}-{count}"
    if path.exists():
        return path
    with new_folder(path) as temporary:
        for number in range(count):
            colour = (number * 37 % 256, number * 59 % 256, number * 83 % 256)
            picture = Image.effect_noise((PICTURE_SIDE, PICTURE_SIDE), 40).convert("RGB")
            ImageDraw.Draw(picture).ellipse((30, 30, PICTURE_SIDE - 30, PICTURE_SIDE - 30), fill=colour)
            picture.save(temporary / f"{number:05d}.jpg", quality=85)
            (temporary / f"{number:05d}.txt").write_text(f"picture {number}", encoding="utf-8")
    return path
