"""Reads LoRAs and their strengths from the command line."""

import math
import os
import re
from collections.abc import Iterable
from pathlib import Path

from modules.config.errors import UserError

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"


def lora_and_strength(text: str) -> tuple[str, float]:
    """The file and the strength of "cat.safetensors:0.8"."""
    text = os.path.expanduser(text)  # shells leave the ~ of --lora=~/cat.safetensors as it is
    match = re.fullmatch(rf"(.+):({_NUMBER})", text, re.ASCII)
    if match is None or not math.isfinite(float(match[2])) or Path(text).exists():
        return text, 1.0
    return match[1], float(match[2])


def strength_of_each(texts: Iterable[str]) -> dict[str, float]:
    """The strength of each file. Raises UserError for a file that is named twice."""
    strengths: dict[str, float] = {}
    for path, strength in map(lora_and_strength, texts):
        if path in strengths:
            raise UserError(f"--lora {path!r} is given twice: name it once, with the strength that you want.")
        strengths[path] = strength
    return strengths
