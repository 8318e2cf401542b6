"""Settings whose files and folders are found from any working folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from modules.config.describe import settings_by_path
from modules.config.files import config_from_values, to_values

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig


MADE_BY_RUNS = ("workspace_dir", "cache_dir", "output.fallback_dir")
PATHS = ("file", "folder", "file_or_folder")


def with_absolute_paths(config: TrainConfig) -> TrainConfig:
    """The settings with absolute paths in place of those that start from this process's working folder.

    A text that a run does not make a folder of is a path only if there is such a file or folder: it may be a name of
    the Hub.
    """
    return config_from_values(_absolute(to_values(config), ""))


def _absolute(value: Any, path: str) -> Any:
    if isinstance(value, dict):
        return {name: _absolute(part, f"{path}.{name}" if path else name) for name, part in value.items()}
    if isinstance(value, list):
        return [_absolute(part, f"{path}[]") for part in value]
    info = settings_by_path().get(path) or settings_by_path().get(path.removesuffix("[]"))
    if not isinstance(value, str) or not value or info is None or value.startswith("~"):
        return value
    is_path = path in MADE_BY_RUNS or (info.format in PATHS and os.path.exists(value))
    return os.path.abspath(value) if is_path else value
