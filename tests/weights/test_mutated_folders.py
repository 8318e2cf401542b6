"""Whatever is in a model's folder: it is loaded, or refused in one sentence; it runs no code and asks nothing."""

import builtins
import contextlib
import shutil

import pytest

from modules.config.errors import UserError
from modules.families.registry import FAMILIES
from tests.support.mutated_folders import mutate
from tests.support.planted_folders import LIBRARIES, MODULES, doors, plant_code

SEEDS = 300
SAMPLED = 20  # in each run of the tests
# From text, with a part of diffusers' pipelines, with AutoTokenizer, with a processor, and of a modular pipeline.
NAMES = ("sd15", "kolors", "wan21", "qwen_image_edit", "anima")


class AskedError(BaseException):
    """Something reads the terminal. Not an Exception, which libraries catch."""


def faults(seed, tiny_model, tmp_path):
    """What the doors of a mutated folder do wrong."""
    name = NAMES[seed % len(NAMES)]
    folder = shutil.copytree(tiny_model(name), tmp_path / str(seed) / "model")
    canary = tmp_path / f"canary{seed}"
    plant_code(folder, canary, (*MODULES, *(LIBRARIES if seed % 7 == 0 else ())))
    done = mutate(seed, folder, canary)
    for door, load in doors(folder, FAMILIES[name]):
        try:
            with contextlib.suppress(AskedError):
                load()
        except UserError as error:
            if "\n" in str(error) or not str(error).endswith(".") or len(str(error)) > 1000:
                yield f"{seed} {name} {door}: {done}: no sentence: {error}"
        except Exception as error:
            yield f"{seed} {name} {door}: {done}: {type(error).__name__}: {error}"
        if canary.exists():
            yield f"{seed} {name} {door}: {done}: its code ran"
            shutil.rmtree(canary)
    shutil.rmtree(folder.parent)


@pytest.fixture
def asked(monkeypatch):
    questions = []

    def ask(*args):
        questions.append(args)
        raise AskedError

    monkeypatch.setattr(builtins, "input", ask)
    return questions


def check(seeds, tiny_model, tmp_path, asked):
    assert [fault for seed in seeds for fault in faults(seed, tiny_model, tmp_path)] == []
    assert asked == []


def test_a_mutated_folder_is_loaded_or_refused_in_one_sentence(tiny_model, tmp_path, asked):
    check(range(SAMPLED), tiny_model, tmp_path, asked)


@pytest.mark.proof
def test_no_mutated_folder_ends_in_a_traceback_a_question_or_its_own_code(tiny_model, tmp_path, asked):
    check(range(SAMPLED, SEEDS), tiny_model, tmp_path, asked)
