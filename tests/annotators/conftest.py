"""Tiny captioners, folders without captions, and a state folder of the test's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modules.annotators import DoneRecord
from modules.curation import Journal
from scripts import caption
from tests.support.pictures import write_pictures
from tests.support.tiny_captioners import make_tiny_captioner

SIZES = ((64, 64), (96, 64), (64, 96), (80, 64))


@pytest.fixture(scope="session")
def tiny_captioner(tmp_path_factory) -> Callable[[str], Path]:
    """The folder of a tiny captioner, by the name of its kind."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = make_tiny_captioner(name, tmp_path_factory.mktemp("captioners") / name)
        return made[name]

    return get


@pytest.fixture
def uncaptioned(tmp_path) -> Callable[[int], Path]:
    """A folder of so many images without captions, of several sizes."""

    def make(count: int) -> Path:
        sizes = [SIZES[number % len(SIZES)] for number in range(count)]
        return write_pictures(tmp_path / "images", sizes, captions=[""] * count)

    return make


@pytest.fixture(autouse=True)
def state_folder(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "state"
    for module in (DoneRecord, Journal):
        monkeypatch.setattr(module, "window_state_folder", lambda: folder)
    return folder


class Killed(BaseException):
    """Ends a run as a kill does: nothing here catches it."""


@pytest.fixture
def run_captioner(monkeypatch) -> Callable[..., tuple[int, list[dict[str, Any]]]]:
    """Runs scripts/caption.py: (exit code, events). killed_at: the number of captions after which it is killed."""

    def run(*arguments: Any, killed_at: int = 0) -> tuple[int, list[dict[str, Any]]]:
        events: list[dict[str, Any]] = []

        def show(line: str) -> None:
            events.append(json.loads(line))
            if killed_at and sum(event["event"] == "caption" for event in events) == killed_at:
                raise Killed

        monkeypatch.setattr(caption, "show", show)
        try:
            return caption.main([*map(str, arguments), "--json"]), events
        except Killed:
            return -9, events

    return run


def captioned(events: list[dict[str, Any]]) -> list[str]:
    """The names of the images that were captioned, in order."""
    return [Path(event["path"]).name for event in events if event["event"] == "caption"]


def texts_in(folder: Path) -> dict[str, str]:
    """Name of each caption file -> its text."""
    return {path.name: path.read_text(encoding="utf-8").rstrip("\n") for path in sorted(folder.glob("*.txt"))}
