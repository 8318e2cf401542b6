"""The list of problems, without a display."""

import pytest

from modules.config.problems import Problem, set_to
from modules.machine.can_start import StartFacts
from modules.machine.Machine import Machine
from modules.ui.models.ProblemList import ProblemList
from modules.ui.models.SettingsModel import SettingsModel

CPU = Machine(cores=2, cpu_formats=frozenset())


@pytest.fixture
def settings() -> SettingsModel:
    return SettingsModel()


@pytest.fixture
def problems(settings) -> ProblemList:
    return ProblemList(settings)


def messages(problems: ProblemList) -> list[str]:
    return [problem.message for problem in problems.all()]


def test_a_step_of_buckets_larger_than_the_resolution_is_known_at_once_and_solved_by_a_click(settings, problems):
    settings.set_many({"data.bucketing": True, "data.bucket_step": 64})
    settings.set("data.resolution", 32)
    [problem] = problems.at("data.bucket_step")
    assert problem.message.startswith("Bucket resolution steps 64: must not be larger than Resolution (32)")
    assert problem.remedy.text == "Set to 8"
    problems.apply(problem.remedy)
    assert settings.get("data.bucket_step") == 8
    assert problems.at("data.bucket_step") == []


def test_they_are_counted_by_kind(settings, problems):
    assert problems.count_text() == "No problems"
    settings.set("epochs", "many")
    assert problems.count_text() == "1 problem"
    settings.set("optimizer.learning_rate", 1.0)
    settings.set("data.resolution", 4)
    assert problems.count_text() == "2 problems, 1 warning"
    assert [problem.blocking for problem in problems.all()] == [True, True, False]


def test_what_was_gathered_is_a_problem_until_it_is_gathered_anew(settings, problems):
    told = []
    settings.subscribe(lambda paths: told.append(paths))
    error = "model.base '/gone' is no folder: choose another."
    problems.take_facts(StartFacts(CPU, base_error=error))
    assert problems.error("model.base") == "Base model '/gone' is no folder: choose another."
    assert told == [{"model.base"}]
    problems.take_facts(StartFacts(CPU, base_error=error))
    assert len(told) == 1  # nothing has changed
    problems.take_facts(StartFacts(CPU))
    assert problems.error("model.base") is None
    assert told == [{"model.base"}] * 2


def test_half_precision_on_this_cpu_is_a_warning_that_one_undo_brings_back(settings, problems):
    problems.take_facts(StartFacts(CPU))
    settings.set_many({"model.weight_dtype": "bfloat16", "model.mixed_precision": "bf16"})
    [problem] = problems.at("model.weight_dtype")
    assert (problem.blocking, problem.remedy.text) == (False, "Set to float32")
    problems.apply(problem.remedy)
    assert problems.at("model.weight_dtype") == []
    settings.undo()
    assert problems.at("model.weight_dtype") == [problem]


def test_what_a_check_refuses_stays_until_a_setting_changes_and_does_not_prevent_the_next_check(settings, problems):
    refusal = [
        Problem("lora.start_from", "lora.start_from '/a' is no LoRA: choose another."),
        Problem("", "The Hub can't be reached."),
    ]
    problems.take_refusal(refusal)
    assert messages(problems) == ["Initial LoRA weights '/a' is no LoRA: choose another.", refusal[1].message]
    assert [problem.path for problem in problems.all()] == ["lora.start_from", ""]
    assert problems.blocking() == []
    problems.take_facts(StartFacts(CPU))
    assert problems.at("lora.start_from")
    settings.set("lora.start_from", "")
    settings.set("epochs", 3)
    assert messages(problems) == []
    problems.take_refusal(refusal)
    problems.forget_refusal()
    assert messages(problems) == []


def test_a_problem_that_several_find_is_said_once(settings, problems):
    settings.set("workspace_dir", "")
    problems.take_refusal([Problem("workspace_dir", "workspace_dir is empty: name a folder to write to.")])
    assert len(problems.at("workspace_dir")) == 1


def test_the_remedy_of_what_a_check_refuses_solves_it(settings, problems):
    problems.take_refusal([Problem("batch_size", "batch_size 3 is refused: use 4.", remedy=set_to("batch_size", 4))])
    [problem] = problems.at("batch_size")
    problems.apply(problem.remedy)
    assert settings.get("batch_size") == 4
    assert problems.all() == []
