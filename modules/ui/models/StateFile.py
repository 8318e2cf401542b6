"""A JSON file that stores a part of the window's state between sessions."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from modules.config.atomic_file import rename
from modules.session.atomic import write_json


class StateFile:
    """path: None stores nothing."""

    def __init__(self, path: Path | None):
        self.path = path
        self._state: dict | None = None
        self._num_states = self._last_written = 0
        self._write_lock = threading.Lock()

    def pending_save(self, state: dict) -> Callable[[], None] | None:
        """A function that writes a state, to be called in any thread; None if it is already written.

        state: must not be modified afterwards. The function raises OSError if the file can't be written. It does
        nothing if a later state was written first.
        """
        if self.path is None:
            return None
        if state != self._state:
            self._state, self._num_states = state, self._num_states + 1
        if self._num_states == self._last_written:
            return None
        path, number = self.path, self._num_states

        def write() -> None:
            with self._write_lock:
                if number > self._last_written:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_json(path, state)
                    self._last_written = number

        return write

    def set_aside(self) -> Path | None:
        """Rename a file that can't be used, so that it is not overwritten: a newer Chorus can read it, or the user can
        repair it. Returns its new path; None if it can't be renamed, and so the next state can't be written either."""
        if self.path is None:
            return None
        aside = self.path.with_suffix(".unreadable.json")
        with contextlib.suppress(OSError):
            rename(self.path, aside)
            return aside
        return None
