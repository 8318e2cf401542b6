"""SimpleTuner: config.json, config.env, multidatabackend.json, and its command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.config.other_programs import Program, load_program
from modules.importers.command_lines import ScriptCommand, read_commands
from modules.importers.foreign_values import shown
from modules.importers.ImportResult import ImportResult, Line
from modules.importers.ListEntry import entries
from modules.importers.read_file import TEXT_ENDINGS
from modules.importers.simpletuner_data import OF_DATA, take_datasets
from modules.importers.simpletuner_model import OF_MODEL
from modules.importers.simpletuner_training import OF_TRAINING
from modules.importers.SimpleTunerTranslation import SimpleTunerTranslation

FILES = "SimpleTuner's settings (config.json, config.toml, config.env), datasets (.json) and commands (.sh, .bat, .ps1)"
_SCRIPTS = ("train.py", "simpletuner")
_MODEL = "model_family"
_OF_DATASETS = ("instance_data_dir", "dataset_type", "caption_strategy", "cache_dir_vae", "metadata_backend")
_VARIABLE = re.compile(r"""^\s*(?:export\s+)?(?P<name>\w+)(?P<adds>\+?)=(?P<value>"[^"]*"|'[^']*'|[^#]*)""")
_EXTRA = ("TRAINER_EXTRA_ARGS", "ACCELERATE_EXTRA_ARGS")


def recognizes(path: Path, content: Any) -> bool:
    """Whether a file with this content is of SimpleTuner."""
    if isinstance(content, str):
        if path.suffix.lower() == ".env":
            return _MODEL in _environment(content)
        return path.suffix.lower() in TEXT_ENDINGS and bool(_commands(path, content))
    if isinstance(content, Mapping):
        return _MODEL in _settings(content)
    found = entries(content)
    return bool(found) and any("id" in one and any(name in one for name in _OF_DATASETS) for one in found)


def translate(path: Path, content: Any) -> ImportResult:
    """The settings of a file that `recognizes` knows. Raises UserError if Chorus lacks its model."""
    if isinstance(content, list):
        t = SimpleTunerTranslation({}, path.parent)
        take_datasets(t, content)
        return t.result
    if isinstance(content, Mapping):
        return _run(_settings(content), path.parent)
    if path.suffix.lower() == ".env":
        return _run(_environment(content), path.parent)
    first, *others = _commands(path, content)
    result = _run(first.arguments, path.parent)
    for word in [word for word in first.rest if word != "train"][:20]:
        result.left.append(Line(shown("a word", word), why="it belongs to no argument"))
    for other in others:
        why = "only the first command of a file is imported; put this one into a file of its own"
        result.left.append(Line(f"a second command, {other.script}", why=why))
    return result


def _run(given: Mapping[str, Any], folder: Path) -> ImportResult:
    t = SimpleTunerTranslation(given, folder)
    which = shown(_MODEL, t.model) + (f", {shown('model_flavour', t.flavour)}" if t.flavour else "")
    t.take_line("family", t.family.name, which)
    t.take("method", t.method.name, "model_type")
    if t["model_type"].lower() not in t.program.facts["model_types"]:
        t.leave("SimpleTuner has no such training: all weights train; choose another in method", "model_type")
    return t.run(OF_MODEL | OF_TRAINING | OF_DATA)


def _settings(content: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of config.json, whose names may have dashes, and which its window puts into a section."""
    inner = content.get("config")
    if isinstance(inner, Mapping) and "_metadata" in content:
        content = {**{key: value for key, value in content.items() if key not in ("config", "_metadata")}, **inner}
    return {_name(str(key)): value for key, value in content.items()}


def _environment(text: str) -> dict[str, Any]:
    """The settings of config.env, with the arguments that two of its variables hold."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        if match := _VARIABLE.match(line):
            value = match["value"].strip().strip("\"'")
            before = values.get(match["name"], "") if match["adds"] else ""
            values[match["name"]] = f"{before} {value}".strip()
    names = _table().facts["variables"]
    result: dict[str, Any] = {}
    for name, value in values.items():
        if name not in _EXTRA:
            result[_name(names.get(name, name.lower()))] = value
        elif value:
            for command in read_commands(f"train.py {value}", ("train.py",), True):
                words = {_name(key): one for key, one in command.arguments.items()}
                result |= words if name == _EXTRA[0] else {name.lower(): value}
    if "use_bitfit" in result:
        result["layer_freeze_strategy"] = "bitfit" if result.pop("use_bitfit").lower() == "true" else None
    return result


def _commands(path: Path, text: str) -> list[ScriptCommand]:
    commands = read_commands(text, _SCRIPTS, path.suffix.lower() not in (".sh", ".bash"))
    for command in commands:
        command.arguments = {_name(key): value for key, value in command.arguments.items()}
    return [command for command in commands if _MODEL in command.arguments]


def _name(name: str) -> str:
    name = name.strip().lstrip("-").replace("-", "_")
    return str(_table().facts["earlier"].get(name, name))


def _table() -> Program:
    return load_program("simpletuner")
