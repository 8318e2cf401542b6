"""The index of a model's folder: the JSON file that names its pipeline and the class of each of its parts."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

INDEX = "model_index.json"
# Of models that diffusers has as blocks only; it says of each part where it comes from, too.
MODULAR_INDEX = "modular_model_index.json"
INDEXES = (INDEX, MODULAR_INDEX)
# The files of a processor that may name its class.
_PROCESSOR_CONFIGS = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")


def index_in(names: Collection[str]) -> str:
    """The name of the index among the names of a folder's files; that of an ordinary pipeline if there is none."""
    return MODULAR_INDEX if INDEX not in names and MODULAR_INDEX in names else INDEX


def index_file(folder: Path) -> Path:
    """The index of a folder, which may not exist."""
    return folder / index_in([name for name in INDEXES if (folder / name).is_file()])


def read_model_index(folder: Path) -> dict[str, Any]:
    """The index of a folder, with [library, class] for each part. Raises OSError or ValueError if it can't be read.

    That of blocks may name parts that come from another place, such as FLUX.3's prompt upsampler. These are left out.
    """
    path = index_file(folder)
    index = json.loads(path.read_text(encoding="utf-8"))
    if path.name == INDEX:
        return index
    parts = {name: value[2] for name, value in index.items() if _is_modular_part(value)}
    places = {name: part.get("pretrained_model_name_or_path") for name, part in parts.items()}
    own_place = max(places.values(), key=[*places.values()].count, default=None)
    read = {name: value for name, value in index.items() if name not in parts}
    for name, part in parts.items():
        if places[name] == own_place or (folder / name).is_dir():
            read[name] = _processor_class(folder / name, part["type_hint"])
    return read


def _is_modular_part(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and isinstance(value[2], dict) and "type_hint" in value[2]


def _processor_class(folder: Path, pair: list[str]) -> list[str]:
    """[library, class] of a part, with the class that its files name in place of AutoProcessor."""
    if pair != ["transformers", "AutoProcessor"]:
        return pair
    for name in _PROCESSOR_CONFIGS:
        if (folder / name).is_file():
            named = json.loads((folder / name).read_text(encoding="utf-8")).get("processor_class")
            if named:
                return ["transformers", named]
    return pair
