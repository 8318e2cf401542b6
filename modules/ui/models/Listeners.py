"""Those who are told when something has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

Arguments = ParamSpec("Arguments")


class Listeners(Generic[Arguments]):
    """Functions of the same arguments, called in the order in which they came."""

    def __init__(self) -> None:
        self._listeners: dict[object, Callable[Arguments, object]] = {}

    def add(self, listener: Callable[Arguments, object]) -> Callable[[], None]:
        """Returns a function that ends it; a second call of that does nothing."""
        key = object()
        self._listeners[key] = listener
        return lambda: self._listeners.pop(key, None)

    def tell(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        """Call them. One that another has ended meanwhile is not called any more."""
        for key, listener in list(self._listeners.items()):
            if key in self._listeners:
                listener(*args, **kwargs)
