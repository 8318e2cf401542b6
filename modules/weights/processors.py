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
UNKNOWN = "a \U0010fffd"  # with a character that is in no vocabulary


def without_videos(component_class: type[Any]) -> type[Any]:
    """The class itself, or for a processor with a part for videos, a subclass of the same name without it."""
    if not _has_video_part(component_class):
        return component_class
    parts = [name for name in component_class.get_attributes() if name != VIDEO_PART]
    members = {"get_attributes": classmethod(lambda cls: parts), "__module__": component_class.__module__}
    return type(component_class.__name__, (component_class,), members)


CHOOSING = ("AutoTokenizer", "AutoProcessor")


def load_processors(folder: str | Path, index: Mapping[str, Any]) -> dict[str, Any]:
    """The components of a model that diffusers would load otherwise than they are loaded here, by name.

    These are processors that transformers would build with a part for videos, and those whose class leaves it to the
    folder which it is, and with which code.
    folder: of the model. index: its model_index.json, with classes that `component_classes` accepts.
    """
    pairs = {name: value for name, value in index.items() if isinstance(value, list | tuple) and len(value) == 2}
    named = {name: value[1] for name, value in pairs.items() if value[0] == "transformers"}
    transformers = importlib.import_module("transformers")
    classes = {name: getattr(transformers, class_name, None) for name, class_name in named.items() if class_name}
    return {
        name: without_videos(kind).from_pretrained(folder, subfolder=name, trust_remote_code=False)
        for name, kind in classes.items()
        if kind is not None and (_has_video_part(kind) or named[name] in CHOOSING)
    }


def _has_video_part(component_class: type[Any]) -> bool:
    is_processor = hasattr(component_class, "get_attributes")
    return is_processor and VIDEO_PART in inspect.signature(component_class.__init__).parameters


def check_tokenizer(component: Any) -> None:
    """Raises whatever the tokenizers library raises if it can't read every text.

    That is so where a tokenizer names a token for what it does not know, and its vocabulary lacks that token.
    component: of any kind; others than tokenizers, and processors with one, are passed over.
    """
    from transformers import PreTrainedTokenizerBase

    tokenizer = getattr(component, "tokenizer", component)
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        tokenizer.tokenize(UNKNOWN)
