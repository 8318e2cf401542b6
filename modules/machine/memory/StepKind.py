"""What tells steps apart whose activations are counted alike and simulated differently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

COUNTED_TARGETS = "attention"  # the layers with adapters in the counts of activations, see scripts/model_counts.py


@dataclass(frozen=True)
class StepKind:
    """`str()` is its name in resources/preset_memory.json.

    trained: the whole "vae", the "full" denoiser, or a "lora" beside it. targets: the layers with adapters, "" without;
    each keeps its input for the backward pass. in_parts: with gradient checkpointing. frees: what the backward pass
    frees as it produces gradients: "at once" activations and autocast's copies, which then never all exist together,
    "fused" also the gradients. predictions: how many of them get gradients; gradient checkpointing computes a block of
    one of them again at a time.
    """

    trained: str
    targets: str = ""
    in_parts: bool = False
    frees: Literal["", "at once", "fused"] = ""
    predictions: int = 1

    def __str__(self) -> str:
        adapters = f" on {self.targets}" if self.targets not in ("", COUNTED_TARGETS) else ""
        several = f" in {self.predictions} predictions" if self.predictions > 1 else ""
        parts = " in parts" if self.in_parts else ""
        return f"{self.trained}{adapters}{parts}{self.frees and f' {self.frees}'}{several}"
