"""Says which file of a component a library could not read."""

from __future__ import annotations

import pickle
from pathlib import Path

from modules.config.errors import ModelFileError
from modules.config.model_index import read_json
from modules.machine.weight_files import WEIGHTS
from modules.weights.errors import loading_reason
from modules.weights.inspect import CONFIGS
from modules.weights.safe import PICKLE_SUFFIXES


def reason_with_file(error: Exception, folder: Path) -> str:
    """Why a library could not load a component, as a clause with the path of the file to blame, as far as it is known.

    error: of the library. folder: of the component.
    """
    reason = loading_reason(error)
    if isinstance(error, OSError) or str(folder) in reason or not folder.is_dir():
        return reason  # which says where
    file = _to_blame(error, folder)
    return f"'{file}': {reason}" if file else reason


def _to_blame(error: Exception, folder: Path) -> Path | None:
    files = sorted(file for file in folder.iterdir() if file.is_file())
    if isinstance(error, pickle.UnpicklingError):
        return next((file for file in files if _is_pickle(file)), None)
    for file in files:
        if file.suffix == ".json" and not _is_readable(file):
            return file
    names = {file.name: file for file in files}
    return next((names[name] for name in ("tokenizer.json", *CONFIGS) if name in names), None)


def _is_pickle(file: Path) -> bool:
    return file.suffix in PICKLE_SUFFIXES and WEIGHTS.fullmatch(file.name) is not None


def _is_readable(file: Path) -> bool:
    try:
        read_json(file)
    except (OSError, ModelFileError):
        return False
    return True
