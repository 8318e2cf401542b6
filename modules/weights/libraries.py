"""Imports diffusers, transformers and peft quietly, and faster: without what only they have a use for, and without
looking for garbage."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

from modules.families import pipelines

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from transformers import PreTrainedModel

    Model: TypeAlias = ModelMixin | PreTrainedModel  # a component of a pipeline that is a module


def import_pipeline(name: str) -> type[DiffusionPipeline]:
    """The pipeline class `name` of diffusers, or our own for a model that it has as blocks only.

    Importing it imports most of what its models need.
    """
    with gc_paused():
        diffusers = import_diffusers()
        own = f"{pipelines.__name__}.{name}"
        return getattr(import_module(own) if find_spec(own) else diffusers, name)


def import_diffusers() -> ModuleType:
    """Imports diffusers, without warnings that users can't act on, progress bars, and questions on the terminal."""
    quiet_libraries()
    with _hidden("bitsandbytes"):
        import diffusers
    import transformers

    # peft imports transformers, which has read its variable by then if that was before the call above
    for library, variable in ((transformers, "TRANSFORMERS_VERBOSITY"), (diffusers, "DIFFUSERS_VERBOSITY")):
        if os.environ[variable] == "error":
            library.utils.logging.set_verbosity_error()
    # Else transformers asks whether to run code that a model brings along, wherever one of its own models or
    # processors loads a part by an Auto class without saying trust_remote_code. With 0 it refuses.
    transformers.dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0
    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_progress_bar()
    return diffusers


def import_peft() -> ModuleType:
    """Imports peft, as quietly."""
    quiet_libraries()
    with _hidden("bitsandbytes"):
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
def gc_paused() -> Iterator[None]:
    """Context without garbage collection, for imports: it finds nothing to free there, but takes a quarter of the time
    of importing torch, diffusers and transformers.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _hidden(package: str) -> Iterator[None]:
    """Context in which a package is not found, unless it has been imported already.

    diffusers and peft import bitsandbytes wherever it is installed, which takes more than a second, for layers of its
    own that no model has here: QuantizedLinear is in their place. What needs the package imports it.
    """
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment] # as Python itself does to prevent an import
    try:
        yield
    finally:
        del sys.modules[package]
