"""Finds where a source asks for an entry of a table by its name."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator


def names_asked_for(tree: ast.Module, names: Collection[str], setting: str) -> Iterator[str]:
    """Those of `names` that something is compared with, or looked up by; a collection of several is there for that.

    setting: whose value such a name is: what a dictionary has for it is a condition.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            yield from (name for side in sides for name in names_in([side, *elements_of(side)], names))
        elif isinstance(node, ast.MatchValue):
            yield from names_in([node.value], names)
        elif len(set(several := names_in(elements_of(node), names))) > 1:
            yield from several
        elif isinstance(node, ast.Dict):
            conditions = zip(node.keys, node.values, strict=True)
            values = [value for key, value in conditions if isinstance(key, ast.Constant) and key.value == setting]
            yield from (name for value in values for name in names_in([value, *elements_of(value)], names))


def elements_of(node: ast.AST) -> list[ast.expr | None]:
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return node.elts
    return node.keys if isinstance(node, ast.Dict) else []


def names_in(nodes: Iterable[ast.AST | None], names: Collection[str]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and node.value in names]
