"""Reads files of other programs, as leniently as those programs do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from modules.config.errors import ConfigError
from modules.config.parse import MAX_FILE_BYTES, parse_yaml

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same, as a package
    import tomli as tomllib

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".avif", ".jxl", ".tif", ".tiff")
TEXT_ENDINGS = (".sh", ".bash", ".bat", ".cmd", ".ps1", ".txt")
MAX_DEPTH = 40
_MARKS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"))


def read_content(path: Path) -> Any:
    """What a JSON, YAML or TOML file holds; the text of another one.

    Raises ConfigError if it can't be read.
    """
    text, ending = read_text(path), path.suffix.lower()
    try:
        if ending == ".json":
            content = json.loads(text, strict=False)
        elif ending in (".yaml", ".yml"):
            content = parse_yaml(text)
        elif ending == ".toml":
            content = tomllib.loads(text)
        else:
            return text
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply to be a settings file.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())[:200]}.") from error
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{path} can't be read: {' '.join(str(error).split())[:200].rstrip('.')}.") from error
    if not _is_shallow(content):
        raise ConfigError(f"{path} is nested too deeply to be a settings file.")
    return content


def read_text(path: Path) -> str:
    """The text of a file: UTF-8, with or without a byte order mark, UTF-16 with one, else Windows' Latin letters.

    Raises ConfigError if it can't be read, is larger than 10 MB or isn't text.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} can't be read: {reason}; check the path.") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} is larger than 10 MB: that is no settings file.")
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = data.decode("cp1252", errors="replace")  # what Windows' editors wrote for a long time
    if "\0" in text:
        raise ConfigError(f"{path} is not a text file: name a settings file.")
    return text


def find_beside(name: str, folder: Path) -> Path | None:
    """The file or folder of a relative path in a settings file: in its folder, one above it, or the working folder.

    Other programs start in their own folder, in which their settings lie one or two levels deep.
    """
    for start in (folder, *list(folder.resolve().parents)[:2], Path()):
        try:
            if (path := start / name).exists():
                return path
        except (OSError, ValueError):
            return None
    return None


def _is_shallow(content: Any) -> bool:
    level = [content]
    for _ in range(MAX_DEPTH):
        inner = [
            list(part.values()) if isinstance(part, dict) else part for part in level if isinstance(part, (dict, list))
        ]
        level = [entry for part in inner for entry in part]
        if not level:
            return True
    return False
