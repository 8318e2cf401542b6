"""The families there are, by name: every `Family` that a file in this folder declares."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import modules.families
from modules.families.Family import Family


def _declared() -> dict[str, Family]:
    """In the order in which they are offered, which is that of their labels."""
    names = [found.name for found in pkgutil.iter_modules(modules.families.__path__, "modules.families.")]
    values = (value for name in names if name != __name__ for value in vars(import_module(name)).values())
    families = {family.name: family for family in values if isinstance(family, Family)}
    return dict(sorted(families.items(), key=lambda item: item[1].label.casefold()))


FAMILIES: dict[str, Family] = _declared()


def family_of(pipeline: str | None) -> Family | None:
    """The family that trains what diffusers calls `pipeline`, None where there is none."""
    return next((one for one in FAMILIES.values() if pipeline in one.pipelines), None)
