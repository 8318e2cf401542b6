"""Refusals: they keep their settings and remedies, on the way through other processes, too."""

import ast
import copy
import re
from pathlib import Path

from modules.config.describe import settings_by_path
from modules.config.errors import ConfigError, UserError
from modules.config.explain import generic_path
from modules.config.problems import Problem, set_to
from modules.session.RunSummary import RunSummary

MODULES = Path(__file__).parents[2] / "modules"
ERRORS = {"UserError", "ConfigError", "WeightsError", "DataError", "TrainingError", "RanksError"}
# arguments of the engine are no settings; what a family refuses is only found once its model is loaded
WITHOUT_SETTINGS = ("engine", "families")


def test_setting_and_remedy_survive_pickling_and_json():
    problem = Problem("batch_size", "batch_size 3: use 4.", remedy=set_to("batch_size", 4))
    for error in (ConfigError([problem, Problem("", "b.")]), UserError.of(problem), UserError.at("seed", "x: y.")):
        other = copy.deepcopy(error)  # as pickle does it
        assert (str(other), other.problems) == (str(error), error.problems)
        summary = RunSummary(problems=tuple(error.problems))
        assert RunSummary.from_json(summary.to_json()) == summary


def test_the_sentence_of_a_setting_begins_with_it():
    assert str(UserError.at("model.base", "'x': gone.")) == "model.base 'x': gone."
    assert str(UserError.at("model.base", ": the model is gone.")) == "model.base: the model is gone."


def test_each_refusal_that_begins_with_a_setting_names_it():
    missing = []
    for path in MODULES.rglob("*.py"):
        if path.relative_to(MODULES).parts[0] not in WITHOUT_SETTINGS:
            missing += [f"{path}:{call.lineno}" for call in _calls(path) if _starts_with_setting(call)]
    assert not missing, "use UserError.at, for the window to lead to the setting"


def _calls(path: Path) -> list[ast.Call]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) == 1]


def _starts_with_setting(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Name) or call.func.id not in ERRORS:
        return False
    text = call.args[0].values[0] if isinstance(call.args[0], ast.JoinedStr) else call.args[0]
    if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
        return False
    return generic_path(re.split("[ :]", text.value)[0]) in settings_by_path()
