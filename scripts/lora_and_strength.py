"""Reads LoRAs and their strengths from the command line."""

import re
from collections.abc import Iterable
from pathlib import Path

from modules.config.errors import UserError


def lora_and_strength(text: str) -> tuple[str, float]:
    """The file and the strength of "cat.safetensors:0.8"."""
    match = re.fullmatch(r"(.+):(-?\d+(?:\.\d+)?)", text)
    return (text, 1.0) if match is None or Path(text).exists() else (match[1], float(match[2]))


def strength_of_each(texts: Iterable[str]) -> dict[str, float]:
    """The strength of each file. Raises UserError for a file that is named twice."""
    strengths: dict[str, float] = {}
    for path, strength in map(lora_and_strength, texts):
        if path in strengths:
            raise UserError(f"--lora {path!r} is given twice: name it once, with the strength that you want.")
        strengths[path] = strength
    return strengths
