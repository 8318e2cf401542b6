"""Migrations of old settings files to the current version."""

import copy
from collections.abc import Callable, Mapping

from modules.config.errors import ConfigError
from modules.config.show_value import show_value

CURRENT_VERSION = 2

Migration = Callable[[dict], dict]


def _keep_timesteps(values: dict) -> dict:
    """To version 2, in which the experts of a model have equal shares, and timesteps are by default as in its training.

    Before, they were uniform by default. A file that doesn't name its family is for a preset, which names them, or for
    the default family, to which both are the same.
    """
    diffusion = values.setdefault("diffusion", {})
    if isinstance(diffusion, dict):  # anything else is refused when it is validated
        diffusion.setdefault("expert_share", None)
        if "family" in values:
            diffusion.setdefault("timesteps", "uniform")
    return values


MIGRATIONS: dict[int, Migration] = {1: _keep_timesteps}
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
        raise ConfigError.at(
            "config_version", f"is {shown}: it must be a whole number; delete the line or write {current}."
        )
    if version > current:
        raise ConfigError.at(
            "config_version", f"{shown} is newer than this Chorus understands ({current}): update Chorus."
        )
    while version < current:
        if version not in migrations:
            raise ConfigError.at(
                "config_version",
                f"{show_value(version)} is too old for this Chorus ({current}): "
                "create the settings again, starting from a preset.",
            )
        values = migrations[version](values)
        version += 1
    values["config_version"] = current
    return values
