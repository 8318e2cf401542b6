"""The tests find, without a GPU, mistakes of the kinds that only a GPU would show: each is planted in a copy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.planted_mistakes import MISTAKES, Mistake

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("modules", "resources", "scripts", "tests")
SECONDS = 900


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """The program and its tests."""
    folder = tmp_path_factory.mktemp("planted")
    for name in PARTS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_every_mistake_is_planted_where_the_code_is_now():
    gone = [each.name for each in MISTAKES if (ROOT / each.file).read_text(encoding="utf-8").count(each.text) != 1]
    assert not gone, "tests/support/planted_mistakes.py: their text is not in the file, or more than once"


@pytest.mark.proof
@pytest.mark.parametrize("mistake", [pytest.param(each, id=each.name) for each in MISTAKES])
def test_a_mistake_is_found_for_what_it_is(mistake: Mistake, copy: Path):
    file = copy / mistake.file
    own = file.read_text(encoding="utf-8")
    file.write_text(own.replace(mistake.text, mistake.replacement), encoding="utf-8")
    try:
        result = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "--color=no", "-p", "no:cacheprovider", mistake.test],
            cwd=copy,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=SECONDS,
        )
    finally:
        file.write_text(own, encoding="utf-8")
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stdout[-4000:] + result.stderr[-4000:]
    assert re.search(mistake.reason, result.stdout), result.stdout[-4000:]
