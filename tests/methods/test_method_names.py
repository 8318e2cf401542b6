"""No source outside of the methods asks for a method by its name: what others have to know is in a method's facts."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from modules.config.methods import METHODS

ROOT = Path(__file__).resolve().parents[2]
HOMES = ("modules/config/methods.py", *(f"modules/methods/{name}.py" for name in METHODS))
# "vae" is a part of a pipeline there, and no function is given a method.
OF_MODELS = ("modules/families/", "modules/weights/")


def test_no_source_asks_for_a_method_by_its_name():
    found = [(path, name) for path, source in sources() for name in names_asked_for(ast.parse(source))]
    assert found == [], "add what is asked for to the facts of the methods, in modules/config/methods.py"


def test_the_test_finds_each_way_of_asking():
    for source in (
        "if config.method == 'lora': pass",
        "if 'vae' != config.method: pass",
        "small = method in ('lora', 'embedding')",
        "match method:\n    case 'full': pass",
        "share = {'lora': 0.1, 'embedding': 0}.get(config.method, 1)",
        "WHEN = {'method': ['full', 'vae']}",
    ):
        assert list(names_asked_for(ast.parse(source))), source
    of_no_method = "vae = pipe['vae']; card('vae'); parts = ['vae', 'unet']; show(f'method {config.method}')"
    assert not list(names_asked_for(ast.parse(of_no_method)))


def sources() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "modules").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith((*HOMES, *OF_MODELS)):
            yield name, path.read_text(encoding="utf-8")


def names_asked_for(tree: ast.Module) -> Iterator[str]:
    """Names of methods that something is compared with, or looked up by; a collection of several is there for that."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            yield from (name for side in sides for name in names_in([side, *elements_of(side)]))
        elif isinstance(node, ast.MatchValue):
            yield from names_in([node.value])
        elif len(set(several := names_in(elements_of(node)))) > 1:
            yield from several
        elif isinstance(node, ast.Dict):
            conditions = zip(node.keys, node.values, strict=True)
            values = [value for key, value in conditions if isinstance(key, ast.Constant) and key.value == "method"]
            yield from (name for value in values for name in names_in([value, *elements_of(value)]))


def elements_of(node: ast.AST) -> list[ast.expr | None]:
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return node.elts
    return node.keys if isinstance(node, ast.Dict) else []


def names_in(nodes: Iterable[ast.AST | None]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and node.value in METHODS]
