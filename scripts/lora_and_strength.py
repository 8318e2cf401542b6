"""Reads LoRAs and their strengths from the command line."""

import math
import os
import re
from collections.abc import Iterable
from pathlib import Path

from modules.config.errors import UserError

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"


def lora_and_strength(text: str) -> tuple[str, float]:
    """The file and the strength of "cat.safetensors:0.8".

    Raises UserError if the file is there, but what follows its colon is no strength.
    """
    text = os.path.expanduser(text)  # shells leave the ~ of --lora=~/cat.safetensors as it is
    match = re.fullmatch(rf"(.+):({_NUMBER})", text, re.ASCII)
    if match is not None and math.isfinite(float(match[2])) and not Path(text).exists():
        return match[1], float(match[2])
    path, _, strength = text.rpartition(":")
    if path and not Path(text).exists() and Path(path).is_file():
        raise UserError(f"--lora {text!r}: {strength!r} is not a strength; write a number, such as {path}:0.8.")
    return text, 1.0


def strength_of_each(texts: Iterable[str]) -> dict[str, float]:
    """The strength of each file. Raises UserError for a file that is named twice."""
    strengths: dict[str, float] = {}
    for path, strength in map(lora_and_strength, texts):
        if path in strengths:
            raise UserError(f"--lora {path!r} is given twice: name it once, with the strength that you want.")
        strengths[path] = strength
    return strengths
