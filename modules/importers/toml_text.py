"""Writes TOML files: Python's own tomllib only reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def toml_text(values: Mapping[str, Any], prefix: str = "", indent: str = "") -> str:
    """The values as TOML: numbers, switches and texts, lists of them, sections, and lists of sections.

    Raises TypeError for any other value, such as None.
    """
    lines, sections = [], []
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            sections.append(f"\n{indent}[{path}]\n{toml_text(value, f'{path}.', indent)}")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            inner = indent + "  " if prefix else indent
            sections += [f"\n{inner}[[{path}]]\n{toml_text(entry, f'{path}.', inner)}" for entry in value]
        else:
            lines.append(f"{indent}{name} = {_value(value)}\n")
    return "".join([*lines, *sections])


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # as JSON escapes it; TOML also wants this one escaped
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    raise TypeError(f"TOML has nothing like {value!r}")
