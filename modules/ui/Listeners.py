"""Those who are told when something has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

Arguments = ParamSpec("Arguments")


class Listeners(Generic[Arguments]):
    """Functions of the same arguments, called in the order in which they came."""

    def __init__(self) -> None:
        self._listeners: list[Callable[Arguments, object]] = []

    def add(self, listener: Callable[Arguments, object]) -> Callable[[], None]:
        """Returns a function that ends it; a second call of that does nothing."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def tell(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        """Call them. One that ends itself, or another, leaves the rest as they are."""
        for listener in list(self._listeners):
            listener(*args, **kwargs)
