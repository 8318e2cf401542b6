"""Imports peft without warnings, and without bitsandbytes, which it has no use for here.

Whatever imports peft when it is itself imported calls `import_peft` first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from types import ModuleType


def import_peft() -> ModuleType:
    """Imports peft."""
    quiet_libraries()
    with hidden("bitsandbytes"):
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
