"""What is made from the code is made by one command."""

import sys
from types import SimpleNamespace

import pytest

from modules import trainer
from modules.config.presets import SIZES_FILE
from scripts import generate, gpu_report
from scripts.api_reference import MEMBERS, PAGE, reference_page
from scripts.preset_sizes import sizes_text


def test_the_sizes_of_presets_are_up_to_date():
    assert SIZES_FILE.read_text(encoding="utf-8") == sizes_text(), "run python scripts/generate.py --write"


def test_the_api_reference_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == reference_page(), "run python scripts/generate.py --write"


def test_the_page_on_gpus_is_up_to_date():
    assert gpu_report.PAGE.read_text(encoding="utf-8") == gpu_report.page(), "run python scripts/generate.py --write"


def test_the_api_reference_names_all_that_programs_import():
    assert set(trainer.__all__) == set(MEMBERS)


@pytest.mark.parametrize(("codes", "expected"), [((0,) * 9, 0), ((0, 1, *(0,) * 7), 1)])
def test_every_script_that_makes_a_file_is_run_and_a_stale_file_is_told(codes, expected, monkeypatch):
    done = []

    def run(command, check):
        done.append(command)
        return SimpleNamespace(returncode=codes[len(done) - 1])

    monkeypatch.setattr(generate.subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["generate.py", "--check"])
    assert generate.main() == expected
    makers = {path.name for path in generate.FOLDER.glob("*.py") if "write_or_check(__doc__" in path.read_text("utf-8")}
    assert {command[1].name for command in done} == makers
    assert {command[2] for command in done} == {"--check"}
