"""Settings in and out: files, plain values and overrides from a command line."""

import copy
import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from modules.config.atomic_file import write_bytes
from modules.config.describe import settings_by_path
from modules.config.errors import ConfigError
from modules.config.explain import explain, explain_one, generic_path, section_paths, unknown_setting
from modules.config.migrations import migrate
from modules.config.parse import JSON_ENDINGS, check_ending, parse_yaml_value, read_values
from modules.config.TrainConfig import TrainConfig

_ADAPTER = TypeAdapter(TrainConfig)


def load_config(path: str | Path) -> TrainConfig:
    """The settings in a YAML or JSON file; what the file leaves out is the default.

    Raises ConfigError with one sentence for every mistake in the file.
    """
    return config_from_values(load_values(path), str(path))


def load_values(path: str | Path) -> dict:
    """The values in a YAML or JSON file as they are written, brought to today's version, not checked otherwise.

    Raises ConfigError if the file can't be read or its config_version is not understood.
    """
    return migrate(read_values(path))


def config_from_values(values: dict, source: str = "") -> TrainConfig:
    """The settings that `values` give; what they leave out is the default.

    source: where the values came from, for messages.
    Raises ConfigError with one sentence for every mistake.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{source or 'the settings'} must be a mapping of settings to values.")
    try:
        return _ADAPTER.validate_python(migrate(values))
    except ValidationError as error:
        raise ConfigError(explain(error, source)) from error


def to_values(config: TrainConfig) -> dict:
    """All settings as dicts, lists, text, numbers, booleans and None, in the order they are declared."""
    return dataclasses.asdict(config)


def save_config(config: TrainConfig, path: str | Path) -> None:
    """Write all settings as YAML or JSON, told apart by the ending.

    A reader sees the old file or the new one, never a part. The folder has to exist.
    Raises ConfigError if the file can't be written, or the settings would be refused when read again.
    """
    path = Path(path)
    check_ending(path)
    # Lists inside a config can be changed without validation: never write what could not be loaded.
    values = to_values(config_from_values(to_values(config), "the settings to be saved"))
    if path.suffix.lower() in JSON_ENDINGS:
        text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    else:
        text = yaml.dump(values, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, default_flow_style=False)
    try:
        write_bytes(path.resolve(), text.encode("utf-8"))  # a link stays a link
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror}; choose another place.") from error


def apply_overrides(values: dict, overrides: Iterable[str]) -> dict:
    """`values` with each "path=value" set, in a new dict.

    The value is read as in a YAML file, but for text, which is taken as it stands: "concepts.0.prompt=a: b".
    Entries of a list are named by number from 0; the next free number adds one.
    Raises ConfigError with one sentence for every override that names no setting, or gives it a wrong value.
    """
    values = copy.deepcopy(values)
    problems: list[str] = []
    for override in overrides:
        path, equals, text = override.partition("=")
        path = path.strip()
        problem = _problem_with_path(path) if equals else f"--set {override[:60]!r} has no value: write path=value."
        if not problem:
            value = _read_override(path, text)
            problem = _problem_with_value(path, value) or _put(values, path, value)
        if problem:
            problems.append(problem)
    if problems:
        raise ConfigError(problems)
    return values


class _PlainDumper(yaml.SafeDumper):
    """SafeDumper that escapes the line ends of Unicode, which PyYAML writes as they are and reads as spaces."""

    def represent_str(self, data: str) -> yaml.Node:
        style = '"' if any(line_end in data for line_end in "\x85\u2028\u2029") else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_PlainDumper.add_representer(str, _PlainDumper.represent_str)


def _problem_with_path(path: str) -> str:
    if "[]" in path:
        return f"{path[:60]!r} names no entry of a list: write its number, as in concepts.0.path."
    generic = generic_path(path)
    known = settings_by_path()
    if generic in section_paths():
        example = next(other for other in known if other.startswith(f"{generic}."))
        return f"{path} is a section: set one of its settings, such as {example.replace('[]', '.0')}."
    info = known.get(generic) or known.get(generic.removesuffix("[]"))
    is_entry = info is not None and info.path != generic
    if info is None or (is_entry and info.type != "list[int]"):
        return unknown_setting(path)
    return ""


def _read_override(path: str, text: str) -> Any:
    info = settings_by_path().get(generic_path(path))
    if info is not None and info.type in ("str", "choice"):
        return text
    try:
        return parse_yaml_value(text)
    except ConfigError:
        return text  # no number, truth value or list: refused as such, with the rule


def _problem_with_value(path: str, value: Any) -> str:
    """The sentence for a value its setting refuses, judged alone, so that the message need not blame a file."""
    names = path.split(".")
    nested: Any = value
    for name in reversed(names):
        nested = [nested] if name.isdecimal() else {name: nested}
    try:
        _ADAPTER.validate_python(nested)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        return explain_one([*names, *problem["loc"][len(names) :]], problem, "")
    return ""


def _put(values: dict, path: str, value: Any) -> str:
    """Set the value at the path, making sections and the next entry of a list; the problem in words, or ""."""
    names = path.split(".")
    place: Any = values
    for depth, name in enumerate(names):
        here = ".".join(names[:depth])
        key: Any = int(name) if name.isdecimal() else name
        kind: Any = list if isinstance(key, int) else dict
        if not isinstance(place, kind):
            return f"{path} can't be set: {here} is no {'list' if isinstance(key, int) else 'section'} in the file."
        if isinstance(key, int) and key > len(place):
            return f"{path} can't be set: {here} has {len(place)} entries; the next free number is {len(place)}."
        if isinstance(key, int) and key == len(place):
            place.append(None)
        if depth == len(names) - 1:
            place[key] = value
            return ""
        if isinstance(key, int) or place.get(key) is not None:
            place[key] = {} if place[key] is None else place[key]
        else:
            place[key] = [] if names[depth + 1].isdecimal() else {}
        place = place[key]
    return ""
