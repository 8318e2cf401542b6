"""The settings of a run as far as they differ from the defaults, and what differs between runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from modules.config.counted import counted
from modules.config.describe import SettingInfo, settings_by_path
from modules.config.errors import ConfigError
from modules.config.explain import generic_path
from modules.config.files import config_from_values, to_values
from modules.config.labels import label_of
from modules.config.presets import list_presets, load_preset
from modules.config.setting_values import Length, flatten
from modules.config.TrainConfig import TrainConfig

# Where a run writes and keeps things, and its notes: runs that differ in these alone are the same training.
_PLACES = ("workspace_dir", "cache_dir", "config_version", "output.name", "output.fallback_dir", "initial_port")
ABSENT = "—"

Settings = Mapping[str, Any]
"""Path -> value of the settings that are not at their defaults. For a list of parts, such as concepts, their number."""


class Difference(NamedTuple):
    """A setting that differs between runs. values: one for each run, as people read them."""

    path: str
    label: str
    values: tuple[str, ...]


def settings_of(config: TrainConfig) -> dict[str, Any]:
    """The settings of `config` that are not at their defaults."""
    known = settings_by_path()
    found: dict[str, Any] = {}
    for path, value in flatten(to_values(config)).items():
        info = known.get(generic_path(path))
        if isinstance(value, Length):
            if value.number != len(_default_of(info) or ()):
                found[path] = value.number
        elif info is None or value != info.default:
            found[path] = value
    return found


def differences(runs: Sequence[Settings | None]) -> list[Difference]:
    """What differs between runs, in the order in which settings are declared; of those that matter to the training.

    runs: the settings of each; None: unknown, which differs in nothing.
    """
    known = [settings for settings in runs if settings is not None]
    paths = {path for settings in known for path in settings}
    differing = [path for path in paths if path not in _PLACES and not _are_equal(path, known)]
    return [
        Difference(
            path, label_of(path), tuple("?" if one is None else value_text(path, _value(path, one)) for one in runs)
        )
        for path in sorted(differing, key=_place)
    ]


def changed_values(run: Settings, before: Settings) -> dict[str, Any]:
    """The settings of `run` that differ from those of another one, path -> value; without those of parts of lists."""
    known = settings_by_path()
    paths = {*run, *before} - {*_PLACES}
    differing = (path for path in paths if path in known and not _are_equal(path, [run, before]))
    return {path: _value(path, run) for path in sorted(differing, key=_place) if known[path].type != "list"}


def value_text(path: str, value: Any) -> str:
    """A value of the setting at `path` in one line, as the window shows it."""
    info = settings_by_path().get(generic_path(path))
    if value is ABSENT:
        return ABSENT
    if info is not None and info.type == "list":
        return counted(int(value), info.part_name or "entry", "" if info.part_name else "entries")
    if value is None or value == "" or value == []:
        return (info.empty_means if info is not None else "") or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str):
        text = " ".join(value.split())
        return info.choice_labels.get(value, text) if info is not None else text
    return str(value)


def closest_preset(settings: Settings) -> tuple[str, int]:
    """The preset of the same family and method with the fewest settings that differ, and how many these are.

    Concepts, prompts and where things are do not count. ("", 0) if there is none.
    """
    own = {path: value for path, value in settings.items() if _counts(path)}
    family, method = _value("family", settings), _value("method", settings)
    found = [
        (len({path for path in {*own, *preset} if own.get(path) != preset.get(path)}), name)
        for name, preset in _presets().items()
        if (_value("family", preset), _value("method", preset)) == (family, method)
    ]
    return (lambda best: (best[1], best[0]))(min(found)) if found else ("", 0)


@lru_cache(maxsize=1)
def _presets() -> dict[str, dict[str, Any]]:
    found = {}
    for preset in list_presets():
        try:
            settings = settings_of(config_from_values(load_preset(preset.name)))
        except ConfigError:  # one of the user's, which the list of presets reports
            continue
        found[preset.name] = {path: value for path, value in settings.items() if _counts(path)}
    return found


def _counts(path: str) -> bool:
    return path not in _PLACES and not path.startswith(("concepts", "sampling.samples", "model.base", "embeddings"))


def _are_equal(path: str, runs: Sequence[Settings]) -> bool:
    values = [_value(path, settings) for settings in runs]
    return all(value == values[0] for value in values)


def _value(path: str, settings: Settings) -> Any:
    """The value in effect; ABSENT for that of a part of a list that the run does not have."""
    if path in settings:
        return settings[path]
    parent, number = _part_of(path)
    if parent and number >= _value(parent, settings):
        return ABSENT
    info = settings_by_path().get(generic_path(path))
    default = _default_of(info)
    return len(default or ()) if info is not None and info.type == "list" else default


def _part_of(path: str) -> tuple[str, int]:
    """The list that a setting's part is in, and the number of the part: "concepts.2.path" -> ("concepts", 2)."""
    names = path.split(".")
    for depth, name in enumerate(names):
        if name.isdecimal() and depth < len(names) - 1:
            return ".".join(names[:depth]), int(name)
    return "", 0


def _default_of(info: SettingInfo | None) -> Any:
    return None if info is None else info.default


def _place(path: str) -> tuple[int, str]:
    return _order().get(generic_path(path), len(_order())), path


@lru_cache(maxsize=1)
def _order() -> dict[str, int]:
    return {path: place for place, path in enumerate(settings_by_path())}
