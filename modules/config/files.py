"""Read and write settings: files, plain values and command-line overrides."""

import copy
import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from modules.config.atomic_file import write_bytes
from modules.config.counted import counted
from modules.config.describe import PLAIN_LISTS, settings_by_path
from modules.config.errors import ConfigError
from modules.config.explain import explain, explain_one, generic_path, section_paths, unknown_setting
from modules.config.migrations import migrate
from modules.config.parse import JSON_ENDINGS, check_ending, parse_yaml_value, read_values
from modules.config.problems import Problem
from modules.config.TrainConfig import TrainConfig

_ADAPTER = TypeAdapter(TrainConfig)


def load_config(path: str | Path) -> TrainConfig:
    """The settings in a YAML or JSON file; missing ones get their defaults.

    Raises ConfigError with one sentence for every mistake in the file.
    """
    return config_from_values(load_values(path), str(path))


def load_values(path: str | Path) -> dict:
    """The values in a YAML or JSON file, migrated to the current version but not validated.

    Raises ConfigError if the file can't be read or its config_version is not supported.
    """
    return migrate(read_values(path))


def config_from_values(values: dict, source: str = "") -> TrainConfig:
    """The settings given by `values`; missing ones get their defaults.

    source: where the values came from, for error messages.
    Raises ConfigError with one sentence for every mistake.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{source or 'the settings'} must be a mapping of settings to values.")
    try:
        return _ADAPTER.validate_python(migrate(values))
    except ValidationError as error:
        raise ConfigError(explain(error, source)) from error


def to_values(config: TrainConfig) -> dict:
    """All settings as dicts, lists, text, numbers, booleans and None, in the order of declaration."""
    return dataclasses.asdict(config)


def save_config(config: TrainConfig, path: str | Path, keeps_link: bool = True) -> None:
    """Write all settings as YAML or JSON, depending on the extension.

    The file is replaced atomically. The folder has to exist.
    keeps_link: where `path` is a link, replace the file that it leads to, rather than the link.
    Raises ConfigError if the file can't be written, or if the settings would be refused when read back.
    """
    path = Path(path)
    check_ending(path)
    # Lists in a config can be modified without validation: never write settings that could not be loaded again.
    values = to_values(config_from_values(to_values(config), "the settings to be saved"))
    if path.suffix.lower() in JSON_ENDINGS:
        text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    else:
        text = yaml.dump(values, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, default_flow_style=False)
    try:
        write_bytes(path.resolve() if keeps_link else path, text.encode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror}; choose another place.") from error


def apply_overrides(values: dict, overrides: Iterable[str]) -> dict:
    """A copy of `values` with each override "path=value" applied.

    Values are parsed as in a YAML file, except for text, which is taken literally: "concepts.0.prompt=a: b".
    Entries of a list are numbered from 0; the next free number appends one.
    Raises ConfigError with one sentence for every override with an unknown setting or an invalid value.
    """
    values = copy.deepcopy(values)
    problems: list[Problem] = []
    for override in overrides:
        path, equals, text = override.partition("=")
        path = path.strip()
        problem = _problem_with_path(path) if equals else f"--set {override[:60]!r} has no value: write path=value."
        if not problem:
            value = _read_override(path, text)
            problem = problem_with_value(path, value) or put_value(values, path, value)
        if problem:
            problems.append(Problem(path, problem))
    if problems:
        raise ConfigError(problems)
    return values


class _PlainDumper(yaml.SafeDumper):
    """SafeDumper that escapes Unicode line separators, which PyYAML writes unescaped and reads back as spaces."""

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
    if info is None or (is_entry and info.type not in PLAIN_LISTS):
        return unknown_setting(path)
    return ""


def _read_override(path: str, text: str) -> Any:
    generic = generic_path(path)
    info = settings_by_path().get(generic)
    of_list = settings_by_path().get(generic.removesuffix("[]"))
    is_text = info.type in ("str", "choice") if info else of_list is not None and of_list.type == "list[str]"
    if is_text:
        return text
    try:
        return parse_yaml_value(text)
    except ConfigError:
        return text  # not a number, boolean or list: refused later, with the rule


def problem_with_value(path: str, value: Any) -> str:
    """The error for an invalid value, validated on its own, so that the message does not refer to a file."""
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


def put_value(values: dict, path: str, value: Any) -> str:
    """Set the value at the path, creating sections and list entries as needed. Returns the problem in words, or ""."""
    names = path.split(".")
    place: Any = values
    for depth, name in enumerate(names):
        here = ".".join(names[:depth])
        key: Any = int(name) if name.isdecimal() else name
        kind: Any = list if isinstance(key, int) else dict
        if not isinstance(place, kind):
            return f"{path} can't be set: {here} is no {'list' if isinstance(key, int) else 'section'} in the file."
        if isinstance(key, int) and key > len(place):
            held = counted(len(place), "entry", "entries")
            return f"{path} can't be set: {here} has {held}; the next free number is {len(place)}."
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
