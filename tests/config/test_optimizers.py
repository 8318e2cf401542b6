"""The facts of the optimizers agree with the settings derived from them."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace

import pytest

from modules.config.library_optimizers import read_arguments
from modules.config.OptimizerConfig import OptimizerConfig
from modules.config.optimizers import OPTIMIZERS, facts_of_optimizer
from modules.config.TrainConfig import TrainConfig
from modules.config.validation import find_problems

# stochastic_rounding, fused_backward and state_in_ram are shown by facts of their own
OF_ALL = {
    "name", "learning_rate", "weight_decay", "max_grad_norm", "stochastic_rounding", "fused_backward", "state_in_ram"
}  # fmt: skip


@pytest.mark.parametrize("facts", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_optimizer_is_given_the_settings_that_are_shown_for_it_and_no_others(facts):
    settings = vars(OptimizerConfig(name=facts.name))
    facts.arguments(SimpleNamespace(**{name: settings[name] for name in facts.settings}))
    for missing in set(facts.settings) - {"other_name"}:  # which chooses the class
        with pytest.raises(AttributeError, match=missing):
            facts.arguments(SimpleNamespace(**{name: settings[name] for name in facts.settings if name != missing}))


def test_arguments_are_written_as_in_a_call():
    assert read_arguments("betas=(0.9, 0.99), nesterov = True, preset='a'") == {
        "betas": (0.9, 0.99), "nesterov": True, "preset": "a"
    }  # fmt: skip
    assert read_arguments(" ") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("betas=0.9, 0.99", "it can't be read; write it as in betas="),
        ("momentum 0.9", "it can't be read"),
        ("momentum=0.9)(nesterov=True", "it can't be read"),
        ("momentum=__import__('os')", "it can't be read"),
        ("**{'momentum': 0.9}", "it can't be read"),
        ("lr=0.1", "lr is optimizer.learning_rate; set that and leave it out here"),
    ],
)
def test_what_is_no_argument_is_refused(text, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        read_arguments(text)
    config = TrainConfig(optimizer=OptimizerConfig(name="other", other_arguments=text))
    problems = [problem for problem in find_problems(config) if problem.path == "optimizer.other_arguments"]
    assert [said in problem.message for problem in problems] == [True]


def test_the_facts_of_another_optimizer_are_those_of_its_class():
    facts = facts_of_optimizer(OptimizerConfig(name="other", other_name="DAdaptLion"))
    assert (facts.label, facts.maker, facts.finds_own_step) == ("DAdaptLion", "pytorch_optimizer.DAdaptLion", True)


def test_every_setting_is_heeded_by_an_optimizer():
    heeded = {name for facts in OPTIMIZERS.values() for name in facts.settings}
    assert heeded | OF_ALL == {field.name for field in dataclasses.fields(OptimizerConfig)}
