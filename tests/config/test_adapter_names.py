"""No source outside of its row, file, settings and rules asks for a kind of adapters, or knows what its files hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from modules.config.adapters import ADAPTERS, tensor_marks
from modules.weights.adapters.kinds import adapter_kind
from tests.support.asked_names import names_asked_for

ROOT = Path(__file__).resolve().parents[2]
HOMES = (
    "modules/config/adapters.py",
    "modules/config/LoraConfig.py",
    "modules/config/rules/adapters.py",
    *(f"modules/weights/adapters/{name}.py" for name in ADAPTERS),
)

# They translate the names of other programs, which have kinds of their own.
IMPORTERS = "modules/importers/"


def test_no_source_asks_for_a_kind_of_adapters_by_its_name():
    found = [(path, name) for path, tree in sources() for name in names_asked_for(tree, ADAPTERS, ".adapter")]
    assert found == [], "add what is asked for to the facts of the kinds, in modules/config/adapters.py"


def test_no_source_names_the_tensors_of_a_kind():
    marks = tuple(tensor_marks())
    texts = [(path, node.value) for path, tree in sources() for node in ast.walk(tree) if is_text(node)]
    assert [(path, text) for path, text in texts if text.lstrip(".").startswith(marks)] == []


def test_each_kind_has_a_file():
    assert [adapter_kind(name).name for name in ADAPTERS] == list(ADAPTERS)


def test_the_test_finds_comparisons_and_conditions():
    for source in ("if lora.adapter == 'oft': pass", "x = {'.adapter': ['ia3']}", "y = kind in ('loha', 'lokr')"):
        assert list(names_asked_for(ast.parse(source), ADAPTERS, ".adapter")), source


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / "modules").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name not in HOMES and not name.startswith(IMPORTERS):
            yield name, ast.parse(path.read_text(encoding="utf-8"))
