"""What a condition does stands in its files: no other code names one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from modules.data.conditions import condition_class
from modules.families import conditions
from modules.families.conditions import Condition
from modules.families.registry import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
# Where conditions are declared, seen by the denoisers of families, and handled.
THEIRS = ("modules/families/", "modules/data/conditions/", "modules/config/rules/conditions/")
IMPORTERS = "modules/importers/"  # which translate the names of other trainers' settings
# The declarations of settings, and what lists settings by their names.
SETTINGS = {
    *(f"modules/config/{name}.py" for name in ("ConceptConfig", "DataConfig", "LossConfig", "SampleConfig")),
    *(
        "modules/data/ImageRequest.py",
        "modules/sampling/generation.py",
        "modules/sampling/SamplePrompts.py",
    ),  # of a sample
    *(f"modules/ui/{name}.py" for name in ("tabs/DatasetTab", "windows/ConceptWindow", "cards/TryCard")),
    "modules/ui/models/trained_images.py",
}
SPECS = [kind for kind in vars(conditions).values() if isinstance(kind, type) and issubclass(kind, Condition)]
AMBIGUOUS = {"layers", "sizes"}  # names that other things have, too
NAMES = {re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower() for kind in SPECS} - {"condition"}
CLASSES = {kind.__name__ for kind in SPECS} - {"Condition", "Layers", "Sizes"}
WORDS = re.compile(
    r"(references?_folder|layer_folder|source_folder|layered|inpaint|first_frame|last_frame|image_to_video|first_given|last_given"
    r"|image_features)"
)


def test_no_code_names_a_condition_but_its_own():
    found = [
        f"{path}:{line} {name}"
        for path, line, name in named()
        if not path.startswith((*THEIRS, IMPORTERS)) and path not in SETTINGS and names_a_condition(name)
    ]
    assert found == []
    assert {path for path, _, name in named() if names_a_condition(name)} >= SETTINGS


def test_every_condition_of_a_family_has_its_file():
    specs = [spec for family in FAMILIES.values() for spec in family.conditions]
    assert {condition_class(spec.name).__name__ for spec in specs} == {f"_{type(spec).__name__}" for spec in specs}
    assert {spec.name for spec in specs} == NAMES


def names_a_condition(name: str) -> bool:
    return bool(WORDS.search(name)) or name in NAMES - AMBIGUOUS or name in CLASSES


def named() -> Iterator[tuple[str, int, str]]:
    """(file, line, identifier or string) of all code but docstrings."""
    for path in sorted((ROOT / "modules").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            for name in identifiers(node):
                yield path.relative_to(ROOT).as_posix(), getattr(node, "lineno", 0), name


def identifiers(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, (ast.alias, ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.arg, ast.keyword)):
        yield node.arg or ""
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.replace(".", "_").isidentifier():
        yield node.value
