"""Renames tensors by regular expressions."""

from __future__ import annotations

import re

Rules = tuple[tuple[str, str], ...]  # pattern, replacement


def by_rules(name: str, rules: Rules) -> str:
    """The name after all rules, one after another."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name
