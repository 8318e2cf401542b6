"""Which of the user's own settings are kept when a preset is applied, as their declarations say (`kept_as`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from modules.config.describe import settings_by_path
from modules.config.setting_values import value_in


def kept_settings(modified: Sequence[str], now: dict, preset: dict) -> list[str]:
    """The paths of the settings to keep; a list is kept as a whole.

    modified: the settings that differ from the previous preset or, after loading a file, from the defaults.
    now, preset: all values, nested.
    """
    kept: list[str] = []

    def is_unchanged(path: str) -> bool:
        return path in kept or value_in(now, path) == value_in(preset, path)

    for path, info in settings_by_path().items():
        is_modified = any(is_within(one, [path]) for one in modified)
        if info.kept_as and is_modified and all(map(is_unchanged, info.kept_while)):
            kept.append(path)
    return kept


def is_within(path: str, paths: Collection[str]) -> bool:
    """Whether a setting is one of `paths` or inside one of these lists."""
    return any(path == one or path.startswith(f"{one}.") for one in paths)
