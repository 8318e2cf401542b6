"""The formats in which frozen layers can hold their weights, without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class QuantizationFacts:
    """One format.

    name: as in settings files. label: as shown to users.
    weight_bytes: bytes per weight, with its share of the scales in layers of the usual widths.
    multiplies: whether GPUs have products in this format.
    package: the pip package that it needs; empty for PyTorch.
    """

    name: str
    label: str
    weight_bytes: float
    multiplies: bool = False
    package: str = ""


QUANTIZATIONS: dict[str, QuantizationFacts] = {
    facts.name: facts
    for facts in (
        QuantizationFacts(name="int8", label="int8", weight_bytes=1, multiplies=True),
        QuantizationFacts(name="float8", label="float8 (e4m3)", weight_bytes=1, multiplies=True),
        # a scale in float32 for each 64 weights
        QuantizationFacts(name="nf4", label="nf4 (4-bit)", weight_bytes=0.5 + 4 / 64, package="bitsandbytes"),
    )
}
"""By name, in the order of the menu."""

EIGHT_BITS = [name for name, facts in QUANTIZATIONS.items() if facts.multiplies]
