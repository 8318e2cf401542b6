"""What tells prompts apart."""

from __future__ import annotations

from collections.abc import Sequence


def without_common_start(prompts: Sequence[str]) -> list[str]:
    """Removes the words that all prompts start with: `a red cat` and `a red dog` become `cat` and `dog`."""
    words = [prompt.split() for prompt in prompts]
    same = [len(set(column)) == 1 for column in zip(*words, strict=False)]
    common = [*same, False].index(False)
    return [" ".join(each[common:]) or prompt for each, prompt in zip(words, prompts, strict=True)]
