"""Callbacks that are notified of changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

Arguments = ParamSpec("Arguments")


class Listeners(Generic[Arguments]):
    """Functions with the same arguments, called in the order in which they were added."""

    def __init__(self) -> None:
        self._listeners: dict[object, Callable[Arguments, object]] = {}

    def add(self, listener: Callable[Arguments, object]) -> Callable[[], None]:
        """Add a listener. Returns a function that removes it; calling it again does nothing."""
        key = object()
        self._listeners[key] = listener

        def remove() -> None:
            self._listeners.pop(key, None)

        return remove

    def tell(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        """Call all listeners, except those that another listener has just removed."""
        for key, listener in list(self._listeners.items()):
            if key in self._listeners:
                listener(*args, **kwargs)
