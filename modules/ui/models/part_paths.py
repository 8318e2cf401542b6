"""The settings of one part of a list."""

from modules.config.describe import settings_by_path


def part_paths(path: str, number: int) -> list[str]:
    """The paths of all settings of part `number` of the list at `path`: "concepts", 2 -> "concepts.2.name", ..."""
    prefix = f"{path}[]."
    names = [name.removeprefix(prefix) for name in settings_by_path() if name.startswith(prefix)]
    return [f"{path}.{number}.{name}" for name in names]
