"""What a family's denoiser sees beside text and latents, one file for each kind; see `ConditionData`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from modules.data.conditions.ConditionData import ConditionData

if TYPE_CHECKING:
    from modules.families.Family import Family


def conditions_of(family: Family | None) -> list[ConditionData]:
    """The family's conditions, each by the class CONDITION in the file of its name; none for an unknown family."""
    return [condition_class(spec.name)(spec, family) for spec in family.conditions] if family else []


def condition_class(name: str) -> type[ConditionData]:
    """The class for conditions of that name."""
    return import_module(f"{__name__}.{name}").CONDITION
