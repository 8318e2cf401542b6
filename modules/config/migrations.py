"""Migrations of old settings files to the current version."""

import copy
from collections.abc import Callable, Mapping

from modules.config.errors import ConfigError
from modules.config.show_value import show_value

CURRENT_VERSION = 1

Migration = Callable[[dict], dict]

MIGRATIONS: dict[int, Migration] = {}
"""Version -> the function that converts values of this version to the next one."""


def migrate(values: dict, migrations: Mapping[int, Migration] = MIGRATIONS, current: int = CURRENT_VERSION) -> dict:
    """A copy of `values`, converted to version `current`.

    A missing config_version means `current`: hand-written files are written for the installed version.
    Raises ConfigError if the version is not an integer, newer than `current`, or too old to be migrated.
    """
    values = copy.deepcopy(values)
    version = values.get("config_version", current)
    shown = show_value(version)
    if not isinstance(version, int) or isinstance(version, bool):
        raise ConfigError(f"config_version is {shown}: it must be a whole number; delete the line or write {current}.")
    if version > current:
        raise ConfigError(f"config_version {shown} is newer than this Chorus understands ({current}): update Chorus.")
    while version < current:
        if version not in migrations:
            raise ConfigError(
                f"config_version {show_value(version)} is too old for this Chorus ({current}): "
                "create the settings again, starting from a preset."
            )
        values = migrations[version](values)
        version += 1
    values["config_version"] = current
    return values
