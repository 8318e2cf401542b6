"""What the pages for engineers say of the code is there."""

import re
from pathlib import Path

import pytest

from modules.config.presets import load_preset, why_not_offered

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


def test_the_page_on_installing_names_every_command_of_the_package():
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    commands = re.findall(r"^(chorus[\w-]*) = ", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(commands) > 20
    assert [command for command in commands if f"`{command}`" not in page] == []


def test_the_page_on_memory_names_presets_that_are_offered_and_quantized_as_it_says():
    lines = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if re.match(r"\| \d+ GB \|", line)]
    assert len(rows) == 4
    for memory, *columns in rows:
        for column, expected in zip(columns, (set(), {"int8"}, {"nf4"}), strict=True):
            for name, size in re.findall(r"`([\w-]+?)-(\d+)gb`", column):
                assert f"{size} GB" == memory
                assert why_not_offered(name, int(size)) == ""
                model = load_preset(f"{name}-{size}gb")["model"]
                found = {value for path, value in model.items() if path.endswith("_quantization")}
                assert expected <= found
                assert expected or not found
