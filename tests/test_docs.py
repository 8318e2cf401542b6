"""What the pages for engineers say of the code is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["architecture.md", "contributing.md"])
def test_the_files_that_a_page_names_exist(page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    named = set(re.findall(r"\b[\w/]+\.(?:py|md|json|toml)\b", text)) - {"NAME.py", "modules/methods/NAME.py"}
    names = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.*") if ".venv" not in path.parts}
    missing = [name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in names)]
    assert missing == []


def test_the_map_names_every_room():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in (ROOT / "modules").glob("*/__init__.py")}
    assert {room for room in rooms if f"| `{room}` |" not in text} == set()
