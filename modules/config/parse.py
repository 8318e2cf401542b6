"""Strict YAML and JSON parsing: ambiguous, oversized or non-data input is refused rather than guessed at."""

import json
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # PyYAML was built without libyaml, which is five times as fast
    from yaml import SafeLoader as _Loader

from modules.config.busy_files import retry_busy
from modules.config.errors import ConfigError

MAX_FILE_BYTES = 10 * 1024 * 1024
MAX_DEPTH = 20  # settings need four levels; copying hundreds of levels would exceed Python's recursion limit
YAML_ENDINGS = (".yaml", ".yml")
JSON_ENDINGS = (".json",)
# What is a number or true or false without quotes.
_PLAIN = {
    "tag:yaml.org,2002:bool": r"(true|True|TRUE|false|False|FALSE)$",
    "tag:yaml.org,2002:int": r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$",
    "tag:yaml.org,2002:float": (
        r"([-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
}


def read_values(path: str | Path) -> dict:
    """The mapping in a YAML or JSON file, depending on the extension.

    Raises ConfigError if the file can't be read, is larger than 10 MB, is not UTF-8, has a syntax error, repeats a key,
    is nested too deeply, uses YAML aliases, or contains anything but a mapping.
    """
    path = Path(path)
    check_ending(path)
    text = _read_text(path)
    try:
        values = parse_yaml(text) if path.suffix.lower() in YAML_ENDINGS else _parse_json(text)
    except RecursionError as error:
        raise ConfigError(_too_deep(path)) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {_yaml_problem(error)}.") from error
    except (ValueError, OverflowError) as error:
        # json.JSONDecodeError is a ValueError, and so are errors of int() and date() for impossible numbers and dates.
        raise ConfigError(f"{path} can't be read: {_one_line(str(error))}.") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds no settings: write them as lines such as `batch_size: 4`.")
    if not _is_shallow(values):
        raise ConfigError(_too_deep(path))
    return values


def parse_yaml_value(text: str) -> Any:
    """Parse a value written as in a settings file. Raises ConfigError if it is invalid."""
    try:
        return parse_yaml(text)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{text[:60]!r} can't be a value in a settings file.") from error


def check_ending(path: Path) -> None:
    """Raises ConfigError if the extension is neither YAML's nor JSON's."""
    if path.suffix.lower() not in YAML_ENDINGS + JSON_ENDINGS:
        raise ConfigError(f"{path} has the ending {path.suffix!r}: settings files end in .yaml, .yml or .json.")


def _read_text(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path} is not a file: give a settings file that ends in .yaml or .json.")
        with retry_busy(lambda: path.open("rb")) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} can't be read: {reason}; check the path.") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} is larger than 10 MB: it can't be a settings file of Chorus.")
    try:
        return data.decode("utf-8-sig")  # Windows editors write a byte order mark
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8.") from error


class _StrictLoader(_Loader):
    """SafeLoader that refuses repeated keys and reads only plain numbers as numbers, and only true and false as such.

    PyYAML silently takes the last of repeated keys. In YAML 1.1, 1:30 is 90, 017 is 15 and off is false, which nobody
    means today. Here they are text, as in YAML 1.2; a numeric setting then refuses the first and reads the second as
    17, and a switch still takes off.
    """

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _PLAIN]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # the loader itself refuses it, with its position
            if key in seen:
                problem = f"{str(key)[:60]!r} is given twice; delete one of the lines"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


for _tag, _pattern in _PLAIN.items():
    _StrictLoader.add_implicit_resolver(_tag, re.compile(_pattern), list("-+.0123456789tTfF"))


def parse_yaml(text: str) -> Any:
    """Parse a whole YAML file as strictly as a settings file. Raises yaml.YAMLError, ValueError, OverflowError or
    RecursionError if it is invalid."""
    _check_events(text)
    return yaml.load(text, Loader=_StrictLoader)


def _check_events(text: str) -> None:
    """Refuses aliases, tags and deep nesting before anything is made of them.

    Aliases can expand a few lines to gigabytes, and would be lost when Chorus saves the file. Tags such as
    `!!bool maybe` end in a KeyError inside PyYAML. libyaml's composer calls itself for each level.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not allowed", event.start_mark)
        if getattr(event, "tag", None) is not None:
            raise yaml.composer.ComposerError(None, None, "tags (!name) are not allowed", event.start_mark)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise RecursionError


def _parse_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"{key[:60]!r} is given twice; delete one of them")
        values[key] = value
    return values


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number that JSON or a setting can hold; enter a finite one")


def _is_shallow(values: dict) -> bool:
    level: list[Any] = [values]
    for _ in range(MAX_DEPTH):
        inner = [list(part.values()) if isinstance(part, dict) else part for part in level]
        level = [entry for part in inner for entry in part if isinstance(entry, (dict, list))]
        if not level:
            return True
    return False


def _too_deep(path: Path) -> str:
    return f"{path} is nested too deeply: settings are at most four levels deep; delete what lies below."


def _yaml_problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return place + _one_line(getattr(error, "problem", None) or str(error))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200].rstrip(".")
