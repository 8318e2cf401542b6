"""What the settings of a run say of each condition of a model, without torch: one file for each kind."""

import os
import pkgutil
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module

from modules.config.families import load_families
from modules.config.problems import Problem
from modules.config.rules.conditions.ConditionRules import ConditionRules
from modules.config.TrainConfig import TrainConfig


@lru_cache(maxsize=1)
def _all_rules() -> dict[str, ConditionRules]:
    """Those of every kind that has a file of its name here, with RULES."""
    names = [found.name for found in pkgutil.iter_modules([os.path.dirname(__file__)])]
    found = {name: getattr(import_module(f"{__name__}.{name}"), "RULES", None) for name in names}
    return {name: rules for name, rules in found.items() if rules is not None}


def rules_of(config: TrainConfig) -> list[ConditionRules]:
    """Of the conditions that the run's family has."""
    own = load_families()[config.family].conditions
    return [rules for name, rules in _all_rules().items() if name in own]


def why_not_sharded(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """(path of a setting, why a denoiser can't be sharded with it)."""
    for rules in _all_rules().values():
        yield from rules.why_not_sharded(config)


def condition_problems(config: TrainConfig) -> Iterator[Problem]:
    """Of every kind of condition: settings of one that the family lacks are a problem, too."""
    for rules in _all_rules().values():
        yield from rules.problems(config)
