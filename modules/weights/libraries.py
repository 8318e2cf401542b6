"""Imports diffusers and transformers quietly, and faster: without what only they have a use for, and without
looking for garbage."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

from modules.families import pipelines
from modules.layers.quiet_imports import hidden, imported_when_used, quiet_libraries

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from transformers import PreTrainedModel

    Model: TypeAlias = ModelMixin | PreTrainedModel  # a component of a pipeline that is a module


def import_pipeline(name: str) -> type[DiffusionPipeline]:
    """The pipeline class `name` of diffusers, or our own for a model that it has as blocks only.

    Importing it imports most of what its models need.
    """
    with gc_paused(), imported_when_used():
        diffusers = import_diffusers()
        own = f"{pipelines.__name__}.{name}"
        return getattr(import_module(own) if find_spec(own) else diffusers, name)


def import_diffusers() -> ModuleType:
    """Imports diffusers, without warnings that users can't act on, progress bars, and questions on the terminal."""
    quiet_libraries()
    with hidden("bitsandbytes"), imported_when_used():
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
    _fix_device_constructors()
    return diffusers


def _fix_device_constructors() -> None:
    """Has torch list the functions that obey `torch.device("meta")`, which it does in the first such context alone.

    While transformers loads a model, `linspace` is another function (`meta_device_safe_creation_ops`). Listed then, it
    would take the place of the true one, whose tensors would be on the CPU from there on, beside others on meta.
    """
    import torch

    with torch.device("meta"):
        torch.empty(0)


@contextlib.contextmanager
def gc_paused(for_good: bool = False) -> Iterator[None]:
    """Context without garbage collection, for imports: it finds nothing to free there, but takes a quarter of the time
    of importing torch, diffusers and transformers.

    for_good: in a process of Chorus alone, which keeps what it has by then until it ends. Later collections leave that
    out: the first three would look at all of it, for two thirds of a second.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        if for_good:
            gc.freeze()
    finally:
        if was_enabled:
            gc.enable()
