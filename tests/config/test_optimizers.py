"""The facts of the optimizers agree with the settings derived from them."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from modules.config.OptimizerConfig import OptimizerConfig
from modules.config.optimizers import OPTIMIZERS

OF_ALL = {"name", "learning_rate", "weight_decay", "max_grad_norm", "stochastic_rounding"}


@pytest.mark.parametrize("facts", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_optimizer_is_given_the_settings_that_are_shown_for_it_and_no_others(facts):
    settings = vars(OptimizerConfig(name=facts.name))
    facts.arguments(SimpleNamespace(**{name: settings[name] for name in facts.settings}))
    for missing in facts.settings:
        with pytest.raises(AttributeError, match=missing):
            facts.arguments(SimpleNamespace(**{name: settings[name] for name in facts.settings if name != missing}))


def test_every_setting_is_heeded_by_an_optimizer():
    heeded = {name for facts in OPTIMIZERS.values() for name in facts.settings}
    assert heeded | OF_ALL == {field.name for field in dataclasses.fields(OptimizerConfig)}
