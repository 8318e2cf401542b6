"""Imports peft without warnings, and without packages that it has no use for here.

Whatever imports peft when it is itself imported calls `import_peft` first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

# Half a second of each start. What transformers imports for the losses of detectors, and diffusers for sigmas of a beta
# distribution and for the LMS sampler: modules, and the functions that are imported from them by name.
SELDOM_USED = {"scipy.optimize": ("linear_sum_assignment",), "scipy.stats": (), "scipy.integrate": ()}


def import_peft() -> ModuleType:
    """Imports peft."""
    quiet_libraries()
    with hidden("bitsandbytes"), imported_when_used():
        import peft
        from peft.import_utils import is_bnb_available

        is_bnb_available()  # it keeps the answer
    return peft


def quiet_libraries() -> None:
    """Have libraries that are not imported yet log errors only. A verbosity set by the user is kept.

    They warn on import of what is not installed and not needed, on the terminal of every rank.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # warns of kernels that a CPU doesn't need


@contextlib.contextmanager
def hidden(package: str) -> Iterator[None]:
    """Context in which a package is not found, unless it has been imported already.

    diffusers and peft import bitsandbytes wherever it is installed, which takes more than a second and opens the GPUs,
    for layers of its own that no model has here: QuantizedLinear is in their place. What needs the package imports it.
    """
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment] # as Python itself does to prevent an import
    try:
        yield
    finally:
        del sys.modules[package]


@contextlib.contextmanager
def imported_when_used() -> Iterator[None]:
    """Context in which importing a module of SELDOM_USED only makes a stand-in for it.

    The stand-in imports the module as soon as anything of it is used, but for the functions that are imported from it
    by name: these do so when they are called. After the context, whoever imports the module gets it itself.
    """
    stand_ins = {name: _StandIn(name, called) for name, called in SELDOM_USED.items() if name not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, stand_in in stand_ins.items():
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]


class _StandIn(ModuleType):
    """called: functions that are imported by name."""

    def __init__(self, name: str, called: Sequence[str]):
        super().__init__(name)
        self._called = called

    def __getattr__(self, name: str) -> Any:
        if name == "__path__":  # asked for by `from MODULE import NAME`
            package, _, _ = self.__name__.rpartition(".")
            spec = PathFinder.find_spec(self.__name__, import_module(package).__path__)
            return spec.submodule_search_locations if spec else None
        if name.startswith("__"):  # `inspect` asks every module for its file
            raise AttributeError(f"{self.__name__} has not been imported, so it has no {name} yet")
        if name not in self._called:
            return getattr(self._module(), name)

        def call(*arguments: Any, **options: Any) -> Any:
            return getattr(self._module(), name)(*arguments, **options)

        return call

    def _module(self) -> ModuleType:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return import_module(self.__name__)
