from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

MAX_UNDO = 200

S = TypeVar("S")


class UndoHistory(Generic[S]):
    """The states that undo and redo lead to, of anything whose whole state is a value `S`."""

    def __init__(self) -> None:
        self._undo: list[S] = []
        self._redo: list[S] = []
        self._last_name = ""

    def add(self, before: S, same_as: str = "") -> None:
        """Note the state before a change, which can't be followed by a redo any more.

        same_as: consecutive changes with the same name are undone in one step.
        """
        if not (same_as and same_as == self._last_name and self._undo):
            self._undo = [*self._undo[1 - MAX_UNDO :], before]
        self._redo.clear()
        self._last_name = same_as

    def earlier(self) -> list[S]:
        """The states that undo leads to now, the oldest first, for `join`."""
        return list(self._undo)

    def join(self, earlier: list[S], before: S) -> None:
        """Undo all changes since `earlier` was asked for in one step, which leads to `before`."""
        self._undo = [*earlier[1 - MAX_UNDO :], before]
        self.end_typing()

    def end_typing(self) -> None:
        """Undo the next change by a step of its own, whatever its name."""
        self._last_name = ""

    def replace(self, changed: Callable[[S], S]) -> None:
        """Put `changed(state)` in the place of each state."""
        for states in (self._undo, self._redo):
            states[:] = map(changed, states)

    def undo(self, now: S) -> S | None:
        """The state before the last change, which redo leads back from to `now`; None if there is none."""
        return self._step(self._undo, self._redo, now)

    def redo(self, now: S) -> S | None:
        """The state before the last undo, likewise."""
        return self._step(self._redo, self._undo, now)

    def clear(self) -> None:
        """Forget all states."""
        self._undo.clear()
        self._redo.clear()
        self.end_typing()

    def _step(self, source: list[S], target: list[S], now: S) -> S | None:
        if not source:
            return None
        target.append(now)
        self.end_typing()
        return source.pop()
