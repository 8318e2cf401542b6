"""What a family's denoiser sees beside text and latents, one file for each kind; see `ConditionData`."""

from __future__ import annotations

import pkgutil
from collections.abc import Hashable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING

from modules.data.conditions.ConditionData import ConditionData

if TYPE_CHECKING:
    from modules.data.buckets import Buckets
    from modules.data.Dataset import Dataset
    from modules.families.Family import Family


def conditions_of(family: Family | None) -> list[ConditionData]:
    """The family's conditions, each by the class CONDITION in the file of its name; none for an unknown family."""
    return [condition_class(spec.name)(spec, family) for spec in family.conditions] if family else []


def shapes_apart(conditions: Iterable[ConditionData], dataset: Dataset, buckets: Buckets) -> list[Hashable] | None:
    """Of each sample, what is equal for those that share a forward pass, beside their bucket; None if all do."""
    of_conditions = [found for one in conditions if (found := one.apart(dataset, buckets)) is not None]
    return list(zip(*of_conditions, strict=True)) if of_conditions else None


def folder_settings() -> dict[str, str]:
    """Setting of a concept that names a folder of files for its images -> name of the condition that needs them."""
    names = (file.name for file in pkgutil.iter_modules(__path__))
    kinds = {name: getattr(import_module(f"{__name__}.{name}"), "CONDITION", None) for name in names}
    return {kind.folder_setting: name for name, kind in kinds.items() if kind and kind.folder_setting}


def condition_class(name: str) -> type[ConditionData]:
    """The class for conditions of that name."""
    return import_module(f"{__name__}.{name}").CONDITION
