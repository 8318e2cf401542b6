"""Renames tensors by regular expressions."""

from __future__ import annotations

import re

Rules = tuple[tuple[str, str], ...]  # pattern, replacement


def rules_of(table: str) -> Rules:
    """A rule a line: the pattern and, behind spaces, its replacement; none takes away what the pattern finds."""
    return tuple((pattern, "".join(rest)) for pattern, *rest in map(str.split, table.strip().splitlines()))


def by_rules(name: str, rules: Rules) -> str:
    """The name after all rules, one after another."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name
