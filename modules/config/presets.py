"""Presets: partial settings to start from, kept as YAML files in resources/presets.

A preset is data, and lies under the user's file, which lies under the command line's overrides:
`merge_values(load_preset("sd15-lora"), load_values("mine.yaml"))`.
"""

import copy
import difflib
from dataclasses import dataclass
from pathlib import Path

from modules.config.errors import ConfigError
from modules.config.files import load_values

ROOT = Path(__file__).resolve().parents[2]
PRESETS_DIR = ROOT / "resources" / "presets"


@dataclass(frozen=True)
class Preset:
    """name: of the file, without .yaml. description: its first line, a comment."""

    name: str
    path: Path
    description: str


def list_presets(folder: Path = PRESETS_DIR) -> list[Preset]:
    """The presets in a folder, by name. Raises ConfigError for one without a description."""
    return [Preset(path.stem, path, _read_description(path)) for path in sorted(folder.glob("*.yaml"))]


def load_preset(name: str, folder: Path = PRESETS_DIR) -> dict:
    """The values that a preset gives; paths of what ships with Chorus are made absolute.

    Only the names that `list_presets` gives are looked up, so that no name leads out of the folder.
    Raises ConfigError for another name, with the likeliest one that was meant.
    """
    presets = {preset.name: preset for preset in list_presets(folder)}
    if name not in presets:
        match = difflib.get_close_matches(name[:60], presets, n=1)
        remedy = f"did you mean {match[0]}?" if match else f"there are {', '.join(presets)}."
        raise ConfigError(f"unknown preset {name[:60]!r}: {remedy}")
    return _find_shipped(load_values(presets[name].path))


def merge_values(base: dict, over: dict) -> dict:
    """`base` with the values of `over` in their place, section by section; lists are replaced as a whole."""
    merged = copy.deepcopy(base)
    for name, value in over.items():
        if isinstance(value, dict) and isinstance(merged.get(name), dict):
            merged[name] = merge_values(merged[name], value)
        else:
            merged[name] = copy.deepcopy(value)
    return merged


def _find_shipped(values: dict) -> dict:
    """A preset names the demo's model and pictures from the top of Chorus; runs start in any folder."""
    model = values.get("model", {})
    for part, name in [(model, "base"), (model, "config_folder"), *((c, "path") for c in values.get("concepts", []))]:
        if part.get(name) and (ROOT / part[name]).exists():
            part[name] = str(ROOT / part[name])
    return values


def _read_description(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        first = file.readline(500).strip()
    description = first.removeprefix("#").strip()
    if not first.startswith("#") or not description:
        raise ConfigError(f"preset {path} has no description: write it as the first line, after a #.")
    return description
