"""The weights of words in prompts, as A1111 and ComfyUI write them: (word:1.2), (word) for 1.1, [word] for 1 / 1.1.

Parentheses nest and multiply; \\( \\) \\[ \\] stand for the characters themselves.
"""

from __future__ import annotations

import re

ROUND, SQUARE = 1.1, 1 / 1.1
_TOKEN = re.compile(r"\\[()\[\]\\]|:\s*([+-]?(?:\d+\.?\d*|\.\d+))\s*\)|[()\[\]]|[^\\()\[\]:]+|.", re.DOTALL)


def weighted_parts(prompt: str) -> list[tuple[str, float]]:
    """`prompt` without the marks of weights, in parts of equal weight. Brackets that are never closed have no weight.

    For example, "a (red:1.5) cat" -> [("a ", 1.0), ("red", 1.5), (" cat", 1.0)].
    """
    parts: list[tuple[str, float]] = []
    opened: list[tuple[str, int]] = []  # each bracket that is open, and the number of parts before it

    def close(bracket: str, factor: float) -> bool:
        if not opened or opened[-1][0] != bracket:
            return False
        _, start = opened.pop()
        parts[start:] = [(text, weight * factor) for text, weight in parts[start:]]
        return True

    for token in _TOKEN.finditer(prompt):
        text, weight = token[0], token[1]
        if weight is not None and close("(", float(weight)):
            continue
        if text in ("(", "["):
            opened.append((text, len(parts)))
        elif (text == ")" and close("(", ROUND)) or (text == "]" and close("[", SQUARE)):
            pass
        else:
            is_escaped = len(text) == 2 and text[0] == "\\"
            parts.append((text[1] if is_escaped else text, 1.0))
    return _merged(parts)


def _merged(parts: list[tuple[str, float]]) -> list[tuple[str, float]]:
    merged: list[tuple[str, float]] = []
    for text, weight in parts:
        if merged and merged[-1][1] == weight:
            merged[-1] = (merged[-1][0] + text, weight)
        else:
            merged.append((text, weight))
    return merged
