"""The index of a model's folder: the JSON file that names its pipeline and the class of each of its parts."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from modules.config.errors import ModelFileError
from modules.config.regular_file import read_regular
from modules.config.show_value import show_value

INDEX = "model_index.json"
# Of models that diffusers has as blocks only; it says of each part where it comes from, too.
MODULAR_INDEX = "modular_model_index.json"
INDEXES = (INDEX, MODULAR_INDEX)
MAX_INDEX_BYTES = 1 << 20  # published ones have about 1 KB
MAX_NAME = 200
MAX_JSON_BYTES = 1 << 26  # of the other files; the longest lists of tensors have a few MB
# The files of a processor that may name its class.
_PROCESSOR_CONFIGS = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")


def index_in(names: Collection[str]) -> str:
    """The name of the index among the names of a folder's files; that of an ordinary pipeline if there is none."""
    return MODULAR_INDEX if INDEX not in names and MODULAR_INDEX in names else INDEX


def index_file(folder: Path) -> Path:
    """The index of a folder, which may not exist."""
    return folder / index_in([name for name in INDEXES if (folder / name).is_file()])


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The object in a JSON file of a model's folder.

    Raises ModelFileError if it holds anything else, and OSError if it can't be read.
    """
    text = read_regular(path, max_bytes + 1)
    if len(text) > max_bytes:
        raise ModelFileError(f"'{path}': is larger than {max_bytes >> 20} MB; download the model again.")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"'{path}': is not readable JSON; download the model again.") from error
    if not isinstance(content, dict):
        raise ModelFileError(f"'{path}': is not a JSON object; download the model again.")
    return content


def read_model_index(folder: Path) -> dict[str, Any]:
    """The index of a folder, with [library, class] for each part.

    That of blocks may name parts that come from another place, such as FLUX.3's prompt upsampler. These are left out.
    Raises ModelFileError if it names no pipeline or its parts are no such pairs, and OSError if it can't be read.
    """
    path = index_file(folder)
    index = read_json(path, MAX_INDEX_BYTES)
    read = index if path.name == INDEX else _read_modular(folder, index)
    if not is_name(read.get("_class_name")):
        raise ModelFileError(f"'{path}': does not name a pipeline; download the model again.")
    for name, value in read.items():
        if not names_component(value):
            continue
        # the name becomes that of a folder and of an argument
        if not is_name(name) or not (all(map(is_name, value)) or list(value) == [None, None]):
            what = f"gives {show_value(name)} something other than a library and a class"
            raise ModelFileError(f"'{path}': {what}; download the model again.")
    return read


def names_component(value: object) -> bool:
    """Whether a value of a model_index.json is a component: [library, class], or [null, null] for one that is absent.

    Other lists are settings of the pipeline.
    """
    return isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(name, str | None) for name in value)


def has_any(index: Mapping[str, Any], *names: str) -> bool:
    """Whether a model has one of these components. index: its model_index.json, or the config of its pipeline."""
    values = [index[name] for name in names if name in index]
    return any(names_component(value) and value[0] is not None for value in values)


def is_name(value: object) -> bool:
    """Whether it is the name of a class, a library or a component."""
    return isinstance(value, str) and value.isidentifier() and value.isascii() and len(value) <= MAX_NAME


def _read_modular(folder: Path, index: dict[str, Any]) -> dict[str, Any]:
    parts = {name: value[2] for name, value in index.items() if _is_modular_part(value)}
    places = {name: part.get("pretrained_model_name_or_path") for name, part in parts.items()}
    own_place = max(places.values(), key=[*places.values()].count, default=None)
    read = {name: value for name, value in index.items() if name not in parts}
    for name, part in parts.items():
        if places[name] == own_place or (is_name(name) and (folder / name).is_dir()):
            read[name] = _processor_class(folder / name, part["type_hint"]) if is_name(name) else part["type_hint"]
    return read


def _is_modular_part(value: Any) -> bool:
    is_part = isinstance(value, list) and len(value) == 3 and isinstance(value[2], dict)
    return is_part and names_component(value[2].get("type_hint"))


def _processor_class(folder: Path, pair: list[str]) -> list[str]:
    """[library, class] of a part, with the class that its files name in place of AutoProcessor."""
    if pair != ["transformers", "AutoProcessor"]:
        return pair
    for name in _PROCESSOR_CONFIGS:
        if (folder / name).is_file():
            named = read_json(folder / name).get("processor_class")
            if isinstance(named, str) and is_name(named):
                return ["transformers", named]
    return pair
