"""diffusers and transformers, imported once, without their chatter and without a search for garbage."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline


def import_pipeline(name: str) -> type[DiffusionPipeline]:
    """The class that diffusers calls `name`; it imports most of what its models need."""
    with uncollected():
        return getattr(import_diffusers(), name)


def import_diffusers() -> ModuleType:
    """diffusers, with warnings that users can't act on and progress bars of other programs' making switched off.

    Before the first import: transformers speaks while it is imported. A verbosity that the user has set stays.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    import diffusers
    import transformers

    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_progress_bar()
    return diffusers


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Inside, Python does not look for garbage.

    For imports: all that they make stays, and is looked through a thousand times meanwhile, a quarter of the time that
    torch, diffusers and transformers take.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
