"""scripts/runs.py: runs in a terminal."""

import json
import subprocess
import sys

import pytest

from modules.config.installation import ROOT
from modules.runs.marks import change_marks
from modules.runs.RunIndex import RunIndex
from scripts import runs
from tests.support.many_runs import START, make_run
from tests.support.waiting import PATIENCE_SECONDS


@pytest.fixture
def folder(tmp_path):
    make_run(tmp_path / "first", steps=10, values={"seed": 1})
    make_run(tmp_path / "second", steps=30, started=START + 100, values={"seed": 2})
    change_marks(tmp_path / "first", name="Cat", tags=("good",), star=True)
    return tmp_path


def run(capsys, *arguments) -> str:
    assert runs.main([str(one) for one in arguments]) == 0
    return capsys.readouterr().out


def test_runs_are_listed_with_what_differs(folder, capsys):
    lines = run(capsys, "list", folder).splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["second", "finished"], ["*", "Cat"]]
    assert "Seed 1 → 2" in lines[1]
    assert "#good" in lines[2]
    assert "second" not in run(capsys, "list", folder, "--only", "starred", "--search", "tag:good")
    assert "1 is hidden" not in run(capsys, "list", folder, "--search", "nothing") != ""
    found = json.loads(run(capsys, "list", folder, "--json", "--sort", "name"))
    assert [one["name"] for one in found] == ["first", "second"]
    assert found[0]["marks"] == {"name": "Cat", "tags": ["good"], "star": True}


def test_runs_are_compared_as_text_and_as_json(folder, capsys):
    text = run(capsys, "compare", folder / "first", folder / "second")
    assert ["Seed", "1", "2"] in [line.split() for line in text.splitlines()]
    found = json.loads(run(capsys, "compare", folder / "first", folder / "second", "--json", "--axis", "images"))
    assert [one["setting"] for one in found["differences"]] == ["seed"]
    assert [one["curve"][-1][0] for one in found["runs"]] == [40.0, 120.0]
    assert runs.main(["compare", str(folder)]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert runs.main(["list", str(folder / "gone")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_a_watch_keeps_the_index_up_to_date_until_its_window_is_gone(folder):
    command = [sys.executable, "scripts/runs.py", "refresh", str(folder), "--watch"]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"changed\n"
        assert len(RunIndex(folder).load()) == 2
    finally:
        process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
