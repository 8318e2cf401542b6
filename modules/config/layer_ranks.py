"""The ranks of some layers, as people write them: "mid_block=32, up_blocks.*.attn1=8"."""

from __future__ import annotations


def read_layer_ranks(text: str) -> dict[str, int]:
    """Pattern -> rank, in order. Raises ValueError, with what is wrong and the remedy."""
    found = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        pattern, _, number = (part.strip() for part in entry.rpartition("="))
        if not pattern or not number.isdecimal() or int(number) < 1:
            raise ValueError(f"{entry!r} is not a pattern with a rank; write it as in attn1=32, conv*=8")
        found[pattern] = int(number)
    return found
