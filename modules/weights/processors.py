"""Processors of vision-language models, which prepare texts and the images in them.

transformers builds most of them with a part for videos that needs torchvision. No model here sees videos through its
text encoder, so that part is left out, and with it the need for torchvision.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VIDEO_PART = "video_processor"


def without_videos(component_class: type[Any]) -> type[Any]:
    """The class itself, or for a processor with a part for videos, a subclass of the same name without it."""
    if not _has_video_part(component_class):
        return component_class
    parts = [name for name in component_class.get_attributes() if name != VIDEO_PART]
    members = {"get_attributes": classmethod(lambda cls: parts), "__module__": component_class.__module__}
    return type(component_class.__name__, (component_class,), members)


def load_processors(folder: str | Path, index: Mapping[str, Any]) -> dict[str, Any]:
    """The processors of a model that transformers would build with a part for videos, by component.

    folder: of the model. index: its model_index.json.
    """
    pairs = {name: value for name, value in index.items() if isinstance(value, list | tuple) and len(value) == 2}
    named = {name: value[1] for name, value in pairs.items() if value[0] == "transformers"}
    transformers = importlib.import_module("transformers")
    classes = {name: getattr(transformers, class_name, None) for name, class_name in named.items()}
    return {
        name: without_videos(kind).from_pretrained(folder, subfolder=name)
        for name, kind in classes.items()
        if kind is not None and _has_video_part(kind)
    }


def _has_video_part(component_class: type[Any]) -> bool:
    is_processor = hasattr(component_class, "get_attributes")
    return is_processor and VIDEO_PART in inspect.signature(component_class.__init__).parameters
