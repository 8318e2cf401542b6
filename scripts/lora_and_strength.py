"""Reads a LoRA and its strength from the command line."""

import re
from pathlib import Path


def lora_and_strength(text: str) -> tuple[str, float]:
    """The file and the strength of "cat.safetensors:0.8"."""
    match = re.fullmatch(r"(.+):(-?\d+(?:\.\d+)?)", text)
    return (text, 1.0) if match is None or Path(text).exists() else (match[1], float(match[2]))
