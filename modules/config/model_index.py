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


def index_in(names: Collection[str]) -> str:
    """The name of the index among the names of a folder's files; that of an ordinary pipeline if there is none."""
    return MODULAR_INDEX if INDEX not in names and MODULAR_INDEX in names else INDEX


def index_file(folder: Path) -> Path:
    """The index of a folder, which may not exist."""
    return folder / index_in([name for name in INDEXES if (folder / name).is_file()])


def read_model_index(folder: Path) -> dict[str, Any]:
    """The index of a folder, with [library, class] for each part. Raises OSError or ValueError if it can't be read."""
    path = index_file(folder)
    index = json.loads(path.read_text(encoding="utf-8"))
    if path.name == INDEX:
        return index
    return {name: value[2]["type_hint"] if _is_modular_part(value) else value for name, value in index.items()}


def _is_modular_part(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and isinstance(value[2], dict) and "type_hint" in value[2]
