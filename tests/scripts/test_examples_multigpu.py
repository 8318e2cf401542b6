"""scripts/examples_multigpu.py: its commands are ones that the scripts take, and what is chosen is printed or run."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import examples_multigpu
from scripts.examples_multigpu import EXAMPLES, PYTHON, Example, copy, main

ROOT = Path(__file__).resolve().parents[2]
ENDS_WITH_7 = Example("Seven", "Ends.", (PYTHON, "-c", "import sys; sys.exit(len(sys.argv))"), ("--data DIR",))


def script_of(words: tuple[str, ...]) -> int:
    """Where the script of Chorus is among the words of a command, behind the one that starts its ranks."""
    scripts = [place for place, word in enumerate(words) if word.endswith((".py", ".sh", ".bat"))]
    return next(place for place in scripts if words[place] != "scripts/elastic_agent.py")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.title)
def test_each_command_starts_a_script_that_is_there_with_options_that_it_takes(example):
    for command in filter(None, (example.command, example.on_windows)):
        assert (ROOT / command[script_of(command)].replace("\\", "/")).is_file()
    place = script_of(example.command)
    name, given = example.command[place], [*example.command[place + 1 :]]
    given += [word for need in example.needs for word in need.replace(" N", " 1").split()]
    if name.endswith(".sh"):
        name = {
            "./start-multi-gpu.sh": "scripts/start_multi_gpu.py",
            "./start-ui.sh": "scripts/train_ui.py",
            "./scripts/train_multigpu.sh": "scripts/train_flow_matching.py",
        }.get(name, "")
    if not name:  # train_distributed.sh has no parser
        return
    module = importlib.import_module(name.removesuffix(".py").replace("/", "."))
    parse = getattr(module, "parse", None) or module.parse_args
    parse(given)  # ends the program for an option that is not there


def test_without_a_terminal_all_ways_are_listed(capsys):
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert all(example.title in printed for example in EXAMPLES)


def test_print_gives_one_line_with_what_is_to_be_filled_in(capsys):
    number = next(place for place, example in enumerate(EXAMPLES, 1) if example.title == "SLURM")
    assert main(["--print", str(number)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("scripts/slurm_job.py --gpus-per-node=8 --time=24:00:00 --config FILE")


@pytest.mark.parametrize("number", ["0", "99"])
def test_a_number_that_is_not_there_is_refused(number, capsys):
    assert main(["--print", number]) == 2
    assert f"choose one from 1 to {len(EXAMPLES)}" in capsys.readouterr().err


def test_run_passes_options_on_and_gives_the_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(examples_multigpu, "EXAMPLES", (ENDS_WITH_7,))
    assert main(["--run", "1"]) == 2
    assert "also needs --data DIR" in capsys.readouterr().err
    assert main(["--run", "1", "--", "--data=x", "--run", "2", "3", "4", "5"]) == 7


def test_a_person_may_copy_the_command(monkeypatch, capsys):
    answers = iter(["17", "1", "copy"])
    copied = []
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt="": next(answers))
    monkeypatch.setattr(examples_multigpu, "copy", lambda text: copied.append(text) or True)
    assert main([]) == 0
    assert copied[0].endswith("scripts/validate_multigpu.py")
    assert "choose one from" in "".join(capsys.readouterr())


def test_a_clipboard_that_fails_is_passed_over(monkeypatch):
    asked = []

    def run(command, **options):
        asked.append(command[0])
        return subprocess.CompletedProcess(command, int(command[0] != "xclip"))

    monkeypatch.setattr(examples_multigpu.shutil, "which", lambda name: name)
    monkeypatch.setattr(examples_multigpu.subprocess, "run", run)
    assert copy("text")
    assert asked == ["pbcopy", "clip", "wl-copy", "xclip"]
