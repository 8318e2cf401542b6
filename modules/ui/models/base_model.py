"""Examine a base model's path or name. No Tk; call it in a thread, as a disk may be slow."""

from __future__ import annotations

import json
import os
from pathlib import Path

from modules.machine.hub import HUB_NAME

MAX_INDEX_BYTES = 1 << 20


def examine_base(base: str) -> tuple[str, bool]:
    """A sentence on what is at a base model's path or name, and whether it is unusable."""
    if not base.strip():
        return "", False  # reported by the checks of the settings
    path = Path(os.path.expanduser(base))
    try:
        if path.is_dir():
            return _look_at_folder(path)
        if path.is_file():
            if path.suffix.lower() != ".safetensors":
                return f"model.base {base!r} is not a .safetensors file: choose one, or a diffusers folder.", True
            return f"A file of {path.stat().st_size / 2**30:.1f} GiB.", False
    except OSError as error:
        return f"model.base {base!r} can't be read: {error.strerror}; choose another.", True
    if HUB_NAME.fullmatch(base):
        return "A model of the Hugging Face Hub: it is fetched when the run starts, if it is not there yet.", False
    return f"model.base {base!r} is no folder, no file and no name on the Hub: choose another.", True


def base_bytes(base: str) -> int | None:
    """The size of a model's local files; None for a name on the Hub. Call it in a thread."""
    path = Path(os.path.expanduser(base))
    try:
        files = [path] if path.is_file() else []
        if (path / "model_index.json").is_file():  # else it may be a half-typed path, such as the root of the disk
            files = list(path.rglob("*.safetensors"))
        return sum(file.stat().st_size for file in files) or None
    except OSError:  # an unreadable folder, which the model tab reports
        return None


def _look_at_folder(path: Path) -> tuple[str, bool]:
    index = path / "model_index.json"
    if not index.is_file():
        return f"model.base '{path}' has no model_index.json: choose the folder that holds it.", True
    with index.open("rb") as file:
        try:
            name = json.loads(file.read(MAX_INDEX_BYTES)).get("_class_name", "unknown pipeline")
        except (ValueError, AttributeError):
            return f"model.base '{path}' has a damaged model_index.json: fetch the model again.", True
    return f"A diffusers folder: {name}.", False
