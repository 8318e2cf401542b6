"""The settings of all presets."""

from __future__ import annotations

import functools
from typing import Any

from modules.config.presets import list_presets, load_preset


@functools.cache
def preset_values() -> dict[str, dict[str, Any]]:
    """By name, without variants; read only."""
    return {preset.name: load_preset(preset.name) for preset in list_presets()}
