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

pytestmark = pytest.mark.proof

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


@pytest.mark.parametrize("mistake", [pytest.param(each, id=each.name) for each in MISTAKES])
def test_a_mistake_is_found_for_what_it_is(mistake: Mistake, copy: Path):
    file = copy / mistake.file
    own = file.read_text(encoding="utf-8")
    assert own.count(mistake.text) == 1, (
        f"{mistake.file} has the text of this mistake {own.count(mistake.text)} times: "
        f"tests/support/planted_mistakes.py must plant it where the code is now.\n{mistake.text}"
    )
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
