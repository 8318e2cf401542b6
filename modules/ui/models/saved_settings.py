"""Reads the settings that the window has saved when it was closed, and tells where settings come from. No Tk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from modules.config.describe import settings_by_path, value_at
from modules.config.explain import generic_path
from modules.config.files import config_from_values, to_values
from modules.config.TrainConfig import TrainConfig
from modules.session.following import run_of_record
from modules.session.working_folder import absolute_path


class Saved(NamedTuple):
    """config: with valid values. name, source_file, source_run, baseline, typed: as of `SettingsModel.Snapshot`, where
    the name is that of the preset."""

    config: TrainConfig
    name: str
    source_file: str
    source_run: str
    baseline: dict
    typed: dict[str, Any]


def read_saved(state: Mapping[str, Any]) -> Saved:
    """The settings of a saved state, which may be of an older version; input in settings that are gone is dropped.

    Raises ConfigError if its values can't be used; ValueError, KeyError, TypeError or AttributeError if it is damaged.
    """
    config = config_from_values(state["values"], "the last settings")
    baseline = to_values(config_from_values(state["baseline"], "the last preset"))
    typed = {path: text for path, text in state["typed"].items() if _is_path(config, path)}
    origin = str(state["preset_name"]), str(state.get("source_file", "")), str(state.get("source_run", ""))
    if origin[1]:  # in states of older versions, it may be the file of a run
        origin = origin_of(origin[1])
    return Saved(config, *origin, baseline, typed)


def origin_of(path: str | Path) -> tuple[str, str, str]:
    """The name of settings that were loaded from a file, and their `source_file` and `source_run`."""
    run = run_of_record(path)
    return (run.name, "", str(run)) if run else (Path(path).name, absolute_path(path), "")


def _is_path(config: TrainConfig, path: str) -> bool:
    try:
        value_at(config, path)
    except (AttributeError, IndexError, ValueError, TypeError):
        return False
    return generic_path(path) in settings_by_path()
