"""Which settings the machines of a run must agree on, although each reads a settings file of its own."""

from typing import Any

from modules.config.describe import settings_by_path
from modules.config.files import to_values
from modules.config.TrainConfig import TrainConfig


def shared_values(config: TrainConfig) -> dict[str, Any]:
    """All settings that decide what is trained, as plain values: those declared with `scope="run"`.

    Paths on disk are not among them: images, captions and weights are compared by their content.
    """
    values = to_values(config)
    for path, info in settings_by_path().items():
        if info.scope == "machine":
            _remove(values, path.split("."))
    return values


def _remove(values: dict[str, Any], names: list[str]) -> None:
    """Delete the value at a path such as ["concepts[]", "path"], in every entry of a list."""
    name, *rest = names
    if not rest:
        del values[name]
    elif name.endswith("[]"):
        for entry in values[name.removesuffix("[]")]:
            _remove(entry, rest)
    else:
        _remove(values[name], rest)
