"""The pages as HTML, made on the server: no script runs in the browser. Pure functions."""

from __future__ import annotations

import html
import os
import time
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from modules.config.visible_text import visible_line, visible_text
from modules.page.curve_svg import curve_svg
from modules.page.PageRuns import ShownRun
from modules.runs.comparison import SMOOTHED_STEPS
from modules.runs.Curve import Point
from modules.runs.RunTable import TableRun, loss_text, spoken_duration

RUNS_A_PAGE = 50
SAMPLES_A_PAGE = 24
REFRESH_SECONDS = 20  # of what changes
_PLAIN_HTTP = "This page is not encrypted (plain HTTP): whoever can listen on this network can read it."


def runs_page(runs: Sequence[tuple[int, TableRun]], number: int, is_local: bool) -> str:
    """All runs, in pages of RUNS_A_PAGE. number: of the page, from 1. is_local: whether nobody can listen."""
    shown = runs[(number - 1) * RUNS_A_PAGE : number * RUNS_A_PAGE]
    rows = "".join(_row(place, run) for place, run in shown)
    titles = ("Run", "State", "Started", "Loss", "Duration", "Samples")
    head = "".join(f"<th>{title}</th>" for title in titles)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    num_pages = -(-len(runs) // RUNS_A_PAGE)
    body = f"<h1>Runs</h1>{table if shown else '<p>There are no runs here yet.</p>'}{_pages('/', number, num_pages)}"
    return document("Runs", body, is_local, REFRESH_SECONDS)


def run_page(shown: ShownRun, number: int, is_video: dict[str, str], is_local: bool) -> str:
    """One run. number: of the page of its samples, newest first, from 1. is_video: sample -> its video, "" for none."""
    row, name = shown.run.row, _text(shown.run.row.shown_name)
    figures = "".join(f"<dt>{_text(label)}</dt><dd>{_text(value)}</dd>" for label, value in _figures(shown) if value)
    done = f'<progress max="{row.total}" value="{row.step}"></progress>' if row.total else ""
    reason = f'<p class="reason">{html.escape(visible_text(row.reason))}</p>' if row.reason else ""
    points = shown.events.curve.points()
    curve = curve_svg(points, shown.events.validation, SMOOTHED_STEPS)
    body = (
        f'<nav><a href="/">All runs</a></nav><h1>{name}</h1>{done}<dl>{figures}</dl>{reason}'
        f"<h2>Loss</h2>{curve or '<p>No step yet.</p>'}{_samples(shown, number, is_video)}"
    )
    return document(row.shown_name, body, is_local, REFRESH_SECONDS if row.status == "running" else 0)


def message_page(title: str, text: str, goes_to: str = "") -> str:
    """A page with a sentence. goes_to: a path of this server to go on to."""
    refresh = f'<meta http-equiv="refresh" content="0;url={html.escape(goes_to)}">' if goes_to else ""
    link = f'<p><a href="{html.escape(goes_to)}">Go on</a></p>' if goes_to else ""
    return _document(title, f"<h1>{_text(title)}</h1><p>{_text(text)}</p>{link}", refresh)


def document(title: str, body: str, is_local: bool, refresh_seconds: int) -> str:
    refresh = f'<meta http-equiv="refresh" content="{refresh_seconds}">' if refresh_seconds else ""
    again = f" It is updated every {refresh_seconds} seconds." if refresh_seconds else ""
    warning = "" if is_local else f" {_PLAIN_HTTP}"
    return _document(title, f"{body}<footer><p>Chorus, {_when(time.time())}.{again}{warning}</p></footer>", refresh)


def run_path(place: int, name: str) -> str:
    return f"/runs/{place}/{quoted(name)}"


def quoted(name: str) -> str:
    """A file name as one part of a path in an address."""
    return quote(os.fsencode(name), safe="")


def samples_of_page(shown: ShownRun, number: int) -> list[str]:
    """Those on the page of that number, the newest first."""
    return list(reversed(shown.samples))[(number - 1) * SAMPLES_A_PAGE : number * SAMPLES_A_PAGE]


def _document(title: str, body: str, refresh: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">{refresh}'
        f'<title>{_text(title)} - Chorus</title><link rel="stylesheet" href="/page.css"></head>'
        f"<body>{body}</body></html>"
    )


def _row(place: int, run: TableRun) -> str:
    row = run.row
    star = "★ " if row.marks.star else ""
    link = f'<a href="{run_path(place, row.name)}">{star}{_text(row.shown_name)}</a>'
    state = f'<span class="{_state_class(row.status)}">{_text(run.state())}</span>'
    cells = (
        ("Started", _when(row.started)),
        ("Loss", loss_text(row.loss)),
        ("Duration", spoken_duration(row.seconds)),
        ("Samples", f"{row.num_samples or ''}"),
    )
    others = "".join(f'<td data-label="{label}">{_text(value)}</td>' for label, value in cells)
    return f"<tr><td>{link}</td><td>{state}</td>{others}</tr>"


def _figures(shown: ShownRun) -> Iterator[tuple[str, str]]:
    run, row = shown.run, shown.run.row
    yield "State", row.status
    yield "Step", f"{row.step:,} of {row.total:,}" if row.total else ""
    if row.status == "running":
        yield "Left", time_left(shown.events.curve.points(), row.total)
    yield "Epoch", str(row.epoch or "")
    yield "Loss", loss_text(row.loss)
    yield "Validation loss", loss_text(row.validation)
    yield "Started", _when(row.started)
    yield "Last sign of life", _when(row.time) if row.status != "finished" else ""
    yield "Duration", spoken_duration(row.seconds)
    yield "Base model", run.base
    yield "Closest preset", run.preset
    yield "Models saved", str(len(row.saved) or "")


def time_left(points: Sequence[Point], total: int) -> str:
    """How long the remaining steps take at the speed of the last quarter, such as "about 12 min"; "" if unknown."""
    if len(points) < 2:
        return ""
    last, before = points[-1], points[-1 - max(1, len(points) // 4)]
    steps = last.step - before.step
    if steps < 1 or total <= last.step:
        return ""
    text = spoken_duration((total - last.step) * (last.seconds - before.seconds) / steps)
    return f"about {text}" if text else ""


def _samples(shown: ShownRun, number: int, videos: dict[str, str]) -> str:
    if not shown.samples:
        return ""
    figures = []
    path = run_path(shown.place, shown.run.row.name)
    for below in samples_of_page(shown, number):
        step, prompt = shown.samples[below]
        place = "/".join(map(quoted, below.split("/")))
        text = _text(prompt)
        if video := videos.get(below, ""):
            source = f"{path}/samples/{'/'.join(map(quoted, video.split('/')))}"
            options = "controls loop muted playsinline preload=none"
            media = f'<video src="{source}" poster="{path}/thumbs/{place}" {options}></video>'
        else:
            image = f'<img src="{path}/thumbs/{place}" alt="{text}" loading="lazy">'
            media = f'<a href="{path}/samples/{place}">{image}</a>'
        figures.append(f"<figure>{media}<figcaption>Step {step:,}: {text}</figcaption></figure>")
    num_pages = -(-len(shown.samples) // SAMPLES_A_PAGE)
    return f'<h2>Samples</h2><div class="samples">{"".join(figures)}</div>{_pages(path, number, num_pages)}'


def _pages(path: str, number: int, num_pages: int) -> str:
    if num_pages < 2:
        return ""
    newer = f'<a href="{path}?page={number - 1}">Newer</a> ' if number > 1 else ""
    older = f' <a href="{path}?page={number + 1}">Older</a>' if number < num_pages else ""
    return f"<nav><p>{newer}Page {number} of {num_pages}{older}</p></nav>"


def _state_class(status: str) -> str:
    return status if status in ("running", "finished", "failed") else "muted"


def _text(text: str) -> str:
    return html.escape(visible_line(text))


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else ""
